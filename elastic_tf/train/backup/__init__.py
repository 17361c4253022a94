"""Going on after a kill or a power cut, within an epoch too, as if nothing had happened.

`recovery` keeps two files of which one is always whole (`slots`): variables and random generators
and what Keras's callbacks remember (`state`), the number of the next batch.
"""

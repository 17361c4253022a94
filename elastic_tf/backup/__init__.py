"""Going on after a kill or a power cut, within an epoch too, as if nothing had happened.

In: the model and the callbacks of a `fit`, and a scheduler of which only `Scheduler` is known. Out:
two files of which one is always whole (`slots`), and from them all put back (`recovery`, which
calls the others): variables and random generators (`state`), what Keras's callbacks remember
(`keras_callbacks`), and the batch that comes next (`data_position`).
"""

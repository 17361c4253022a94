"""What `train` does: one training into one run directory.

In: options. Out: a run directory.
"""

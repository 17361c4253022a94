"""What `train` does: one training into one run directory.

In: options. Out: a run directory. `work` is the course of it: `sources` (the images), `harness`
(model, rate, head), `recording` (each epoch as it ends), `measurement` and `history` (the result).
"""

"""What a training leaves behind: a run directory, and TensorBoard's events.

In: settings, an epoch's numbers, a record of a selection, a result. Out: `run.Run`, whose files are
readable at any moment and checked when they are read, and `board.Board`.
"""

"""What `compare` does: methods, rates and seeds, at equal epochs and at equal seconds.

In: options. Out: trainings in child processes, and tables.
"""

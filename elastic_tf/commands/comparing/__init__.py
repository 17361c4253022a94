"""What `compare` does: methods at equal epochs and at equal seconds.

In: options. Out: rows of tables. `contest` plans, `trials` trains in child processes, `verdicts`
says what the differences over seeds show.
"""

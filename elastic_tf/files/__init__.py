"""Files that appear whole or not at all, and files that anybody may have written.

In: values as JSON, text or arrays, and paths. Out: the same values, or a `ValueError` that says
what is wrong with the file; and the right to be the only writer. Knows nothing of models.
"""

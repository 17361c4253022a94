"""What `fit` and the measuring functions are given: batches, and what Keras knows of them.

In: arrays, tensors, data sets. Out: batches of tensors with samples first, their size and shapes,
or a `ValueError` that says what was given.
"""

"""Modes of training a tensor that are cheaper than exact ones.

In: a layer's input, kernel and upstream gradient. Out: approximate gradients, and the layer's
operation with these in the place of TensorFlow's.
"""

"""TinyTL: biases, the head and small residual branches are trained, kernels stay.

In: a Keras model. Out: the model with residual branches and a plan.
"""

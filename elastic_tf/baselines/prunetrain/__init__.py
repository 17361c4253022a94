"""PruneTrain: groups of channels that shrink to zero are cut off while the model trains.

In: a Keras model. Out: a model that trains with group lasso and gets smaller.
"""

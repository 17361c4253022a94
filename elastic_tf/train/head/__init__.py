"""A new head in closed form: the best linear layer on the features of a frozen network.

In: a model and its data. Out: the weights of its last dense layer, and how well it does on samples
that it has not seen.
"""

"""The training engine: a Keras model of which any set of tensors is trained, the rest at no cost.

In: a Keras model and a plan. Out: `ElasticMixin`, whose `train_step` computes only what the plan
needs, and a snapshot that leaves nothing behind. Knows nothing of times, importance or budgets.
"""

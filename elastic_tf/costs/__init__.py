"""What a training costs beside time: FLOPs, activation memory, energy.

In: a model and a batch, or a sensor. Out: counts, bytes, joules.
"""

"""Importance: how much the loss is expected to fall when a tensor is trained.

In: an elastic model and a probe batch. Out: one float64 per tensor, in forward order; nothing of
the evaluation is left behind. Any function `(model, x, y) -> (N,)` can take its place.
"""

from elastic_tf.choose.importance.measures import (
    depth,
    gradient_magnitude,
    loss_decrease,
    paper,
    weight_magnitude,
)

__all__ = ["depth", "gradient_magnitude", "loss_decrease", "paper", "weight_magnitude"]

"""When the ops of a traced step run, so that little is in memory at a time.

In: the graph of a step while it is traced. Out: the same graph, in which each tensor is updated as
soon as its gradient exists, and activations are computed again in the backward pass. No bit of what
the step computes is another.
"""

from typing import Any

import tensorflow as tf

from elastic_tf.engine.schedule.recomputation import recompute
from elastic_tf.engine.schedule.updates import update_early

__all__ = ["is_ours", "recompute", "update_early"]


def is_ours(model: Any) -> bool:
    """Whether the order of the ops of a model's step is ours to choose."""
    if model._elastic.keep is None or model.distribute_strategy.num_replicas_in_sync > 1:
        return False
    return not (tf.executing_eagerly() or model.jit_compile)

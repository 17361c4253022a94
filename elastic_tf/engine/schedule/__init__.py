"""When the ops of a traced step run, so that little is in memory at a time.

In: the graph of a step while it is traced. Out: the same graph, in which each tensor is updated as
soon as its gradient exists, and activations are computed again in the backward pass. No bit of what
the step computes is another.
"""

from elastic_tf.engine.schedule.recomputation import recompute
from elastic_tf.engine.schedule.updates import update_early

__all__ = ["recompute", "update_early"]

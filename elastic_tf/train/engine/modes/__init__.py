"""Modes of training a tensor that are cheaper than exact ones, and those that you add.

In: a model, its tensors and a plan. Out: contexts in which the layers of the plan's kernels get
other gradients, approximate ones or those of some channels, while one step is traced.
"""

from elastic_tf.train.engine.modes import channels, filtering, registry
from elastic_tf.train.engine.modes.one_op import in_one_op
from elastic_tf.train.engine.modes.operations import Use, kernel_of, recorded, replaced
from elastic_tf.train.engine.modes.registry import *  # noqa: F403

__all__ = ["Use", "in_one_op", "kernel_of", "recorded", "replaced", *registry.__all__]

for _mode in (*filtering.MODES, *channels.MODES):
    registry.register(_mode)

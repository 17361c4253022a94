"""Modes of training a tensor that are cheaper than exact ones, and those that you add.

In: a model, its tensors and a plan. Out: contexts in which the layers of the plan's kernels get
other gradients, approximate ones or those of some channels, while one step is traced.
"""

from elastic_tf.engine.modes import channels, convolutions
from elastic_tf.engine.modes.one_op import in_one_op
from elastic_tf.engine.modes.operations import Use, kernel_of, recorded, replaced
from elastic_tf.engine.modes.registry import (
    MODES,
    Mode,
    channel_axes,
    check,
    choose,
    everywhere,
    installed,
    kernels,
    register,
    slices,
    watched,
)

__all__ = [
    "MODES",
    "Mode",
    "Use",
    "channel_axes",
    "check",
    "choose",
    "everywhere",
    "in_one_op",
    "installed",
    "kernel_of",
    "kernels",
    "recorded",
    "register",
    "replaced",
    "slices",
    "watched",
]

for _mode in (*convolutions.MODES, *channels.MODES):
    register(_mode)

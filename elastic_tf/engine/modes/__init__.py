"""Modes of training a tensor that are cheaper than exact ones, and those that you add.

In: a model, its tensors and a plan. Out: contexts in which the layers of the plan's kernels get
other gradients, approximate ones or those of some channels, while one step is traced.
"""

from elastic_tf.engine.modes import channels, convolutions
from elastic_tf.engine.modes.operations import Use, kernel_of, recorded, replaced
from elastic_tf.engine.modes.registry import (
    MODES,
    Mode,
    check,
    choose,
    installed,
    kernels,
    register,
    watched,
)

__all__ = [
    "MODES",
    "Mode",
    "Use",
    "check",
    "choose",
    "installed",
    "kernel_of",
    "kernels",
    "recorded",
    "register",
    "replaced",
    "watched",
]

for _mode in (*convolutions.MODES, *channels.MODES):
    register(_mode)

"""Optimizers that can leave tensors out: built over all tensors, applied to some of them.

In: a Keras optimizer, gradients, variables. Out: updates of these variables, with every slot and
every step count as if each tensor had an optimizer of its own.
"""

from elastic_tf.optimizers.selected import (
    CURRENT,
    LEGACY,
    NAMES,
    apply_selected,
    build,
    by_name,
    check,
    finalizing_only,
    gradients,
    rate,
    sgdw,
    state,
    unwrapped,
)

__all__ = [
    "CURRENT",
    "LEGACY",
    "NAMES",
    "apply_selected",
    "build",
    "by_name",
    "check",
    "finalizing_only",
    "gradients",
    "rate",
    "sgdw",
    "state",
    "unwrapped",
]

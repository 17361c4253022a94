"""Optimizers that can leave tensors out: built over all tensors, applied to some of them.

In: a Keras optimizer, gradients, variables. Out: updates of these variables, with every slot and
every step count as if each tensor had an optimizer of its own. Knows nothing of models and plans.
"""

from elastic_tf.optimizers.apply import (
    apply_selected,
    build,
    check,
    finalizing_only,
    gradients,
)
from elastic_tf.optimizers.bias_correction import start_averages
from elastic_tf.optimizers.named import adam, cosine, sgdw
from elastic_tf.optimizers.names import NAMES, by_name
from elastic_tf.optimizers.shampoo import shampoo
from elastic_tf.stack import rate_of as rate
from elastic_tf.stack import state_of as state
from elastic_tf.stack import unwrapped

__all__ = [
    "NAMES",
    "adam",
    "apply_selected",
    "build",
    "by_name",
    "check",
    "cosine",
    "finalizing_only",
    "gradients",
    "rate",
    "sgdw",
    "shampoo",
    "start_averages",
    "state",
    "unwrapped",
]

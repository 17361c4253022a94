"""Optimizers that can leave tensors out: built over all tensors, applied to some of them.

In: a Keras optimizer, gradients, variables. Out: updates of these variables, with every slot and
every step count as if each tensor had an optimizer of its own. Knows nothing of models and plans.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.stack import rate_of as rate
from elastic_tf.stack import state_of as state
from elastic_tf.stack import unwrapped
from elastic_tf.train.optimizers.apply import (
    apply_selected,
    build,
    check,
    gradients,
)
from elastic_tf.train.optimizers.named import adam, check_rate, cosine, sgdw
from elastic_tf.train.optimizers.shampoo import shampoo

__all__ = [
    "NAMES",
    "adam",
    "apply_selected",
    "build",
    "by_name",
    "check",
    "cosine",
    "gradients",
    "rate",
    "sgdw",
    "shampoo",
    "state",
    "unwrapped",
]

_BY_NAME = {
    "sgd": lambda rate: tf.keras.optimizers.SGD(rate, momentum=0.9),
    "sgdw": sgdw,
    "adam": adam,
    "shampoo": shampoo,
}
#: Names that `by_name` knows.
NAMES = tuple(_BY_NAME)


def by_name(name: str, learning_rate: Any) -> Any:
    """An optimizer with the paper's settings, for a rate or a `LearningRateSchedule`.

    "sgd" has momentum 0.9, "sgdw" momentum 0.9 and decay 5e-4, "adam" is `adam`, "shampoo"
    `shampoo`, which the paper does not have.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 8 (SGDW, for ViT Adam).
    """
    arguments.choice("name", name, NAMES)
    check_rate("learning_rate", learning_rate)
    return _BY_NAME[name](learning_rate)

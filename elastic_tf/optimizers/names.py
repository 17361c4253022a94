"""Optimizers by name."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.optimizers.named import adam, check_rate, sgdw
from elastic_tf.optimizers.shampoo import shampoo

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

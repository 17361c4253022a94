"""Optimizers with the paper's settings, by name."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.optimizers.decay import SGDW


def sgdw(
    learning_rate: Any,
    momentum: float = 0.9,
    weight_decay: Any = 5e-4,
    *,
    nesterov: bool = False,
) -> SGDW:
    """SGD with momentum and decoupled weight decay.

    w <- w - weight_decay * w - learning_rate * v, v the momentum of the gradient; the decay is not
    multiplied by the learning rate.

    Args:
        learning_rate: number or `LearningRateSchedule`.
        momentum: share of the last velocity that is kept.
        weight_decay: share of the weight taken away at each step; number or schedule.
        nesterov: use Nesterov momentum.

    Raises:
        ValueError: a number that is negative, or a momentum of 1 or more.

    Source: Loshchilov & Hutter, Decoupled Weight Decay Regularization, ICLR 2019, Algorithm 1.
    """
    for name, value in (("learning_rate", learning_rate), ("weight_decay", weight_decay)):
        _check_rate(name, value)
    arguments.number("momentum", momentum, low=0.0, high=1.0, below=True)
    return SGDW(learning_rate, momentum, nesterov, weight_decay=weight_decay)


def by_name(name: str, learning_rate: Any) -> Any:
    """An optimizer with the paper's settings.

    Args:
        name: one of `NAMES`: "sgd" with momentum 0.9, "sgdw" with momentum 0.9 and decay 5e-4, or
            "adam".
        learning_rate: number or `LearningRateSchedule`.

    Raises:
        ValueError: another name, or a rate that is negative.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 8 (SGDW, for ViT Adam).
    """
    arguments.choice("name", name, NAMES)
    _check_rate("learning_rate", learning_rate)
    return _BY_NAME[name](learning_rate)


def _check_rate(name: str, value: Any) -> None:
    """Refuse a number that is no rate; schedules, variables and functions are Keras's to judge."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        hint = "A LearningRateSchedule will do as well."
        arguments.number(name, value, low=0.0, hint=hint)


_BY_NAME = {
    "sgd": lambda rate: tf.keras.optimizers.SGD(rate, momentum=0.9),
    "sgdw": sgdw,
    "adam": tf.keras.optimizers.Adam,
}
#: Names that `by_name` knows.
NAMES = tuple(_BY_NAME)

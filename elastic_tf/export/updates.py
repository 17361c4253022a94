"""The update of one tensor by an optimizer, in built-in ops of LiteRT, as Keras computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from elastic_tf.optimizers.named import SGDW
from elastic_tf.optimizers.slots import unwrapped

_OPTIMIZERS = tf.keras.optimizers
_SGD = (_OPTIMIZERS.SGD, _OPTIMIZERS.legacy.SGD)
_ADAM = (_OPTIMIZERS.Adam, _OPTIMIZERS.legacy.Adam)
# What would change an update, and is not written.
_FOREIGN = ("amsgrad", "clipnorm", "clipvalue", "global_clipnorm", "use_ema")


class Update(NamedTuple):
    """How an optimizer changes a tensor.

    Attributes:
        slots: names of what it keeps for each tensor, zeros at first: of the tensor's shape, but
            "steps", a number.
        apply: from gradient, value, slots and learning rate to the new value and the new slots.
    """

    slots: tuple[str, ...]
    apply: Callable[..., tuple[tf.Tensor, ...]]


def of(optimizer: Any) -> Update:
    """The update of a Keras optimizer: SGD with or without momentum, SGDW, or Adam.

    Raises:
        ValueError: another optimizer, or a setting that is not written.
    """
    inner = unwrapped(optimizer)
    settings = inner.get_config()
    decay = settings.get("weight_decay") or 0.0
    told = next((f"{name}={settings[name]}" for name in _FOREIGN if settings.get(name)), "")
    if not told and decay and not isinstance(inner, SGDW):
        told = f"weight_decay={decay}"
    if told or not isinstance(inner, (*_SGD, *_ADAM)) or type(inner) is _OPTIMIZERS.AdamW:
        raise ValueError(
            "The optimizer must be SGD, SGDW or Adam, without clipping, averages or weight decay "
            f"but SGDW's. Received: {type(inner).__name__}{told and ' with ' + told}. Compile the "
            "model with elastic_tf.optimizers.adam(1e-3), for instance."
        )
    if isinstance(inner, _ADAM):
        return _adam(settings["beta_1"], settings["beta_2"], settings["epsilon"])
    return _sgd(settings["momentum"], settings["nesterov"], decay)


def _sgd(momentum: float, nesterov: bool, decay: float) -> Update:
    def apply(gradient: Any, value: Any, slots: list[Any], rate: Any) -> tuple[tf.Tensor, ...]:
        value = value - decay * value if decay else value
        if not momentum:
            return (value - rate * gradient,)
        moved = momentum * slots[0] - rate * gradient
        return value + (momentum * moved - rate * gradient if nesterov else moved), moved

    return Update(("momentum",) if momentum else (), apply)


def _adam(beta_1: float, beta_2: float, epsilon: float) -> Update:
    """Source: Kingma & Ba, Adam, ICLR 2015, Algorithm 1, each tensor with its own step count."""

    def apply(gradient: Any, value: Any, slots: list[Any], rate: Any) -> tuple[tf.Tensor, ...]:
        first, second, steps = slots
        steps = steps + 1.0
        rate = rate * tf.sqrt(1.0 - tf.pow(beta_2, steps)) / (1.0 - tf.pow(beta_1, steps))
        first = first + (gradient - first) * (1.0 - beta_1)
        second = second + (tf.square(gradient) - second) * (1.0 - beta_2)
        return value - rate * first / (tf.sqrt(second) + epsilon), first, second, steps

    return Update(("m", "v", "steps"), apply)

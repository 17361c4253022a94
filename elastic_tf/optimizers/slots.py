"""What an optimizer holds: slots, step counts, rates, the loss scale."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

LEGACY = tf.keras.optimizers.legacy.Optimizer
_RATES = ("learning_rate", "current_learning_rate")


def state(optimizer: Any) -> list[tf.Variable]:
    """Every variable of the optimizer: step count, slots, averages, rates, loss scale."""
    inner = unwrapped(optimizer)
    if isinstance(inner, LEGACY):
        found = [*inner.weights, *inner._hyper.values()]
    else:
        rates = (getattr(inner, f"_{name}", None) for name in _RATES)
        found = [*inner.variables, *rates]
    if inner is not optimizer and optimizer.dynamic:
        found += [optimizer.dynamic_counter, optimizer._loss_scale.current_loss_scale]
    unique = {id(item): item for item in found if isinstance(item, tf.Variable)}
    return list(unique.values())


def rate(optimizer: Any) -> tf.Variable | None:
    """The learning rate; None where it follows a schedule."""
    inner = unwrapped(optimizer)
    legacy = isinstance(inner, LEGACY)
    found = inner._hyper.get("learning_rate") if legacy else inner._learning_rate
    return found if isinstance(found, tf.Variable) else None


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside a loss scale optimizer, or the optimizer itself."""
    if isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer):
        return optimizer.inner_optimizer
    return optimizer

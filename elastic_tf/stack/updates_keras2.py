"""The seam to Keras 2: optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

__all__ = [
    "CORRECTS_MOMENTS",
    "add_slot",
    "apply_gradients",
    "averaging_only",
    "build_optimizer",
    "deduplicated",
    "differentiated",
    "finalized",
    "index_of",
    "keep_with",
    "rate_of",
    "scale_of",
    "slot_lists",
    "starts_build",
    "state_of",
    "unwrapped",
]

#: Kinds whose updates use the step count to correct moments, and for nothing else.
CORRECTS_MOMENTS = (
    tf.keras.optimizers.Adam,
    tf.keras.optimizers.AdamW,
    tf.keras.optimizers.Adamax,
)


def unwrapped(optimizer: Any) -> Any:
    """The optimizer inside a loss scale optimizer, or the optimizer itself."""
    if isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer):
        return optimizer.inner_optimizer
    return optimizer


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make the slots of all variables of a model; those that are there stay."""
    inner = unwrapped(optimizer)
    # Keras builds the optimizer inside a loss scale optimizer outside its name scope.
    with tf.name_scope(inner.name if inner is optimizer else ""), tf.init_scope():
        inner.build(list(variables))


def starts_build(optimizer: Any, variables: Sequence[Any]) -> bool:
    """Do what every optimizer does when it is built; False of one that was built before."""
    tf.keras.optimizers.Optimizer.build(optimizer, variables)
    was_built, optimizer._built = getattr(optimizer, "_built", False), True
    return not was_built


def add_slot(optimizer: Any, variable: Any, name: str, start: tf.Tensor | None = None) -> Any:
    """A slot for a variable of the model: zeros of its shape, or what it is to start at."""
    given = {} if start is None else {"shape": start.shape, "initial_value": start}
    return optimizer.add_variable_from_reference(variable, name, **given)


def index_of(optimizer: Any, variable: Any) -> Any:
    """Number of a variable among those that an optimizer was built over; None of others."""
    return optimizer._index_dict.get(optimizer._var_key(variable))


def state_of(optimizer: Any) -> list[tf.Variable]:
    """Every variable of the optimizer: step count, slots, averages, rates, loss scale."""
    inner = unwrapped(optimizer)
    rates = (getattr(inner, name, None) for name in ("_learning_rate", "_current_learning_rate"))
    found = [*inner.variables, *rates]
    if inner is not optimizer and optimizer.dynamic:
        found += [optimizer.dynamic_counter, optimizer._loss_scale.current_loss_scale]
    unique = {id(item): item for item in found if isinstance(item, tf.Variable)}
    return list(unique.values())


def rate_of(optimizer: Any) -> tf.Variable | None:
    """The learning rate; None where it follows a schedule."""
    found = unwrapped(optimizer)._learning_rate
    return found if isinstance(found, tf.Variable) else None


def scale_of(optimizer: Any) -> tf.Variable | None:
    """The dynamic loss scale; None of an optimizer without."""
    return getattr(getattr(optimizer, "_loss_scale", None), "current_loss_scale", None)


def slot_lists(optimizer: Any, index: int) -> dict[str, list[Any]]:
    """Attributes of an optimizer that hold a slot for each variable, by name."""
    return {
        name: value
        for name, value in vars(optimizer).items()
        if isinstance(value, list) and len(value) == len(optimizer._index_dict)
        # of Adam without amsgrad or the like: a list of nothing
        if name != "_variables" and isinstance(value[index], tf.Variable)
    }


def keep_with(optimizer: Any, name: str, variable: tf.Variable) -> None:
    """Give an optimizer another variable, saved with its own in every format."""
    setattr(optimizer, name, variable)
    optimizer._variables.append(variable)
    # the optimizers of tf_keras 2.21 remember what they found for the first checkpoint
    vars(optimizer).pop("_coalesced_children", None)


def differentiated(
    optimizer: Any, tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[Any]:
    """Gradients of a loss, scaled in the tape as the optimizer wants, unscaled after."""
    return [gradient for gradient, _ in optimizer.compute_gradients(loss, variables, tape=tape)]


def deduplicated(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """A sparse gradient that has each row once, as Keras 2 gives it to updates."""
    return gradient


def apply_gradients(optimizer: Any, pairs: Sequence[tuple[Any, tf.Variable]]) -> None:
    """Update variables by what `differentiated` gave for them."""
    optimizer.apply_gradients(pairs)


def averaging_only(
    optimizer: Any, variables: Sequence[tf.Variable], steps: Sequence[tf.Tensor]
) -> AbstractContextManager[None]:
    """Let the averages of these variables move alone, in `apply_gradients`; so Keras 2 does."""
    del optimizer, variables, steps
    return contextlib.nullcontext()


def finalized(
    optimizer: Any, finalize: Callable[[Sequence[Any]], None], variables: Sequence[tf.Variable]
) -> None:
    """Put the averages of these variables in their place, by Keras's own function."""
    del optimizer
    finalize(variables)

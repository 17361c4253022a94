"""Apply an optimizer to some tensors: everything it promises, for them alone.

Keras optimizers, also inside a `LossScaleOptimizer`, update only what they are given. The slots of
all tensors are made at the start, in the order of a plain model's optimizer, so that the state is
interchangeable and a tensor can come and go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.arguments import brief
from elastic_tf.train.optimizers import bias_correction, slices


def check(optimizer: Any) -> None:
    """Raise a TypeError unless `optimizer` is of one of the kinds above."""
    if not isinstance(stack.unwrapped(optimizer), tf.keras.optimizers.Optimizer):
        advice = "Use for instance elastic_tf.train.optimizers.sgdw(1e-3)."
        if optimizer is None:
            advice = "Compile the model first: model.compile(optimizer=..., loss=...)."
        raise TypeError(
            "`optimizer` must be one `tf.keras.optimizers.Optimizer` or `LossScaleOptimizer`: only "
            "their slots can be kept for the tensors left out. Received: "
            f"{brief(optimizer)} of type {type(optimizer).__name__}. {advice}"
        )
    steps = getattr(stack.unwrapped(optimizer), "gradient_accumulation_steps", None)
    if steps and steps > 1:
        raise TypeError(
            "`optimizer` must update in each step: what it collects itself is that of all tensors. "
            f"Received: gradient_accumulation_steps={steps}. Use "
            f"model.compile(..., accumulate={steps})."
        )


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make the slots of all `variables`, as the first step of a plain model would.

    Slots that are there stay. `variables` are in the order of `model.trainable_variables`.

    Raises:
        TypeError: `check` does not admit the optimizer.
        ValueError: the optimizer was built before, over other tensors.
    """
    check(optimizer)
    stack.build_optimizer(optimizer, variables)
    inner, tensors = stack.unwrapped(optimizer), [stack.raw(variable) for variable in variables]
    for variable in tensors:
        if stack.index_of(inner, variable) is None:
            raise ValueError(
                "The optimizer must be built over all trainable tensors of the model. Received: "
                f"an optimizer built over other tensors, without '{variable.name}'. Compile the "
                "model with a new optimizer."
            )
    with tf.init_scope():
        bias_correction.build(inner, len(tensors))
    slices.make(inner, tensors)


def gradients(
    optimizer: Any, tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[tf.Tensor | tf.IndexedSlices | None]:
    """Gradients of a scalar `loss`, scaled in `tape` as the optimizer wants, unscaled after.

    None where the loss does not depend on a variable.
    """
    return stack.differentiated(optimizer, tape, loss, [stack.raw(one) for one in variables])


def apply_selected(
    optimizer: Any,
    gradients: Sequence[tf.Tensor | tf.IndexedSlices | None],
    variables: Sequence[tf.Variable],
) -> None:
    """Update `variables` only: everything `apply_gradients` promises, for them alone.

    Clipping sees the given gradients only; weight decay, moving averages and constraints touch the
    given variables only. A variable whose gradient is None is left alone; with no other variables
    this does nothing, `iterations` included. A gradient of the shape of a kernel's slice updates
    these channels alone. The optimizer was built over all tensors by `build`.
    """
    pairs = [(one, stack.raw(v)) for one, v in zip(gradients, variables) if one is not None]
    if pairs:
        inner, chosen = stack.unwrapped(optimizer), [variable for _, variable in pairs]
        with slices.standing_in(inner, pairs) as given, bias_correction.counting(inner, chosen):
            with stack.never_differentiated():
                stack.apply_gradients(optimizer, given)


@contextlib.contextmanager
def finalizing_only(
    optimizer: Any,
    averaged: Callable[[], Mapping[int, Collection[int] | None]],
    *,
    before: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Let `finalize_variable_values` act on some variables only, while in this context.

    Keras calls it at the end of `fit` with all trainable variables, to put their moving averages
    in their place. The average of a tensor that was left out did not follow it. `averaged`, called
    after `before`, returns the id of each variable to finalize, with its channels or None for all.
    """
    if not getattr(stack.unwrapped(optimizer), "use_ema", False):
        yield
        return
    finalize = optimizer.finalize_variable_values

    def finalize_trained(variables: Sequence[Any]) -> None:
        before()
        trained = averaged()
        chosen = [one for one in map(stack.raw, variables) if id(one) in trained]
        old = [None if trained[id(one)] is None else one.numpy() for one in chosen]
        stack.finalized(optimizer, finalize, chosen)
        for variable, values in zip(chosen, old):
            if values is not None:
                slices.keep_others(variable, trained[id(variable)] or (), values)

    with stack.attributes(optimizer, finalize_variable_values=finalize_trained):
        yield

"""Apply an optimizer to some tensors: everything it promises, for them alone.

Keras optimizers, legacy ones, and either of them inside a `LossScaleOptimizer` update only what
they are given. The slots of all tensors are made at the start, in the order of a plain model's
optimizer, so that the state is interchangeable and a tensor can come and go.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf.arguments import brief
from elastic_tf.optimizers import bias_correction, slices
from elastic_tf.optimizers.slots import LEGACY, unwrapped
from elastic_tf.stack import never_differentiated


def check(optimizer: Any) -> None:
    """Raise a TypeError unless `optimizer` is of one of the kinds above."""
    if not isinstance(unwrapped(optimizer), (LEGACY, tf.keras.optimizers.Optimizer)):
        advice = "Use for instance elastic_tf.optimizers.sgdw(1e-3)."
        if optimizer is None:
            advice = "Compile the model first: model.compile(optimizer=..., loss=...)."
        raise TypeError(
            "`optimizer` must be one `tf.keras.optimizers.Optimizer`, "
            "`tf.keras.optimizers.legacy.Optimizer` or `LossScaleOptimizer`: only their slots can "
            f"be kept for the tensors left out. Received: {brief(optimizer)} of type "
            f"{type(optimizer).__name__}. {advice}"
        )


def build(optimizer: Any, variables: Sequence[tf.Variable]) -> None:
    """Make the slots of all `variables`, as the first step of a plain model would.

    Slots that are there stay. `variables` are in the order of `model.trainable_variables`.

    Raises:
        TypeError: `check` does not admit the optimizer.
        ValueError: the optimizer was built before, over other tensors.
    """
    check(optimizer)
    inner = unwrapped(optimizer)
    if isinstance(inner, LEGACY):
        with tf.name_scope(inner._name), tf.init_scope():
            inner._create_all_weights(list(variables))
        slices.make(inner, variables)
        return
    # Keras builds the optimizer inside a loss scale optimizer outside its name scope.
    with tf.name_scope(inner.name if inner is optimizer else ""), tf.init_scope():
        inner.build(list(variables))
    for variable in variables:
        if inner._var_key(variable) not in inner._index_dict:
            raise ValueError(
                "The optimizer must be built over all trainable tensors of the model. Received: "
                f"an optimizer built over {len(inner._index_dict)} tensors without "
                f"'{variable.name}'. Compile the model with a new optimizer."
            )
    with tf.init_scope():
        bias_correction.build(inner, len(inner._index_dict))
    slices.make(inner, variables)


def gradients(
    optimizer: Any, tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[tf.Tensor | tf.IndexedSlices | None]:
    """Gradients of a scalar `loss`, scaled in `tape` as the optimizer wants, unscaled after.

    None where the loss does not depend on a variable.
    """
    legacy = isinstance(unwrapped(optimizer), LEGACY)
    compute = optimizer._compute_gradients if legacy else optimizer.compute_gradients
    return [gradient for gradient, _ in compute(loss, list(variables), tape=tape)]


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
    pairs = [pair for pair in zip(gradients, variables) if pair[0] is not None]
    if pairs:
        inner, chosen = unwrapped(optimizer), [variable for _, variable in pairs]
        with slices.standing_in(inner, pairs) as given, bias_correction.counting(inner, chosen):
            with never_differentiated():
                optimizer.apply_gradients(given)


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
    if not getattr(unwrapped(optimizer), "use_ema", False):
        yield
        return
    finalize = optimizer.finalize_variable_values

    def finalize_trained(variables: Sequence[tf.Variable]) -> None:
        before()
        trained = averaged()
        chosen = [variable for variable in variables if id(variable) in trained]
        old = [None if trained[id(one)] is None else one.numpy() for one in chosen]
        finalize(chosen)
        for variable, values in zip(chosen, old):
            if values is not None:
                slices.keep_others(variable, trained[id(variable)] or (), values)

    optimizer.finalize_variable_values = finalize_trained
    try:
        yield
    finally:
        del optimizer.finalize_variable_values

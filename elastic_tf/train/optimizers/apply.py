"""Apply an optimizer to some tensors: everything it promises, for them alone.

Keras optimizers, also inside a `LossScaleOptimizer`, update only what they are given. The slots of
all tensors are made at the start, in the order of a plain model's optimizer, so that the state is
interchangeable and a tensor can come and go.

Adam divides its moments by `1 - beta ** t`, t the optimizer's steps so far. The moments of a tensor
that joins late begin at zero all the same: its first hundred steps would be three to seven times
too long. Here t is the number of steps that the tensor itself took part in. The steps that it
missed are kept, so that the state of a plain optimizer, which has no such count, is one of tensors
that missed none. They are saved with the optimizer's variables in every format.

Source: Kingma & Ba, Adam, ICLR 2015, Sec. 3 (why moments are corrected).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.arguments import brief
from elastic_tf.train.optimizers import slices

_MISSED = "missed_steps"  # attribute of an optimizer: of each tensor, int64, shape (tensors,)


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
    inner = stack.unwrapped(optimizer)
    for name in ("use_ema", "gradient_accumulation_steps"):
        if getattr(inner, name, None):
            raise TypeError(
                "`optimizer` must keep neither moving averages of weights nor sums of gradients: "
                "those of tensors that are left out would go wrong. Received: "
                f"{name}={getattr(inner, name)}. Leave it out."
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
        if _corrects(inner) and not hasattr(inner, _MISSED):
            zeros = tf.zeros(len(tensors), tf.int64)
            stack.keep_with(inner, _MISSED, tf.Variable(zeros, trainable=False, name=_MISSED))
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

    Clipping sees the given gradients only; weight decay and constraints touch the given variables
    only. A variable whose gradient is None is left alone; with no other variables
    this does nothing, `iterations` included. A gradient of the shape of a kernel's slice updates
    these channels alone. The optimizer was built over all tensors by `build`.
    """
    pairs = [(one, stack.raw(v)) for one, v in zip(gradients, variables) if one is not None]
    if pairs:
        inner, chosen = stack.unwrapped(optimizer), [variable for _, variable in pairs]
        with slices.standing_in(inner, pairs) as given, _counting(inner, chosen):
            with stack.never_differentiated():
                stack.apply_gradients(optimizer, given)


@contextlib.contextmanager
def _counting(optimizer: Any, variables: Sequence[tf.Variable]) -> Iterator[None]:
    """Let each of `variables` have its own step count in the updates made in this context."""
    missed = getattr(optimizer, _MISSED, None)
    if missed is None:
        yield
        return
    iterations, update_step = optimizer._iterations, optimizer.update_step

    def update_one(gradient: Any, variable: tf.Variable, *rate: Any) -> None:
        index = stack.index_of(optimizer, variable)
        own = {} if common is None else {"_common": common[index]}
        with stack.attributes(optimizer, _iterations=taken_part[index], **own):
            update_step(gradient, variable, *rate)

    taken = {stack.index_of(optimizer, variable) for variable in variables}
    left_out = [int(index not in taken) for index in range(missed.shape[0])]
    before = tf.identity(stack.raw(iterations))
    steps = before - missed
    taken_part = tf.unstack(steps)  # ops of their own for each take long to trace
    common = optimizer.in_common(steps) if hasattr(optimizer, "in_common") else None
    with stack.attributes(optimizer, update_step=update_one):
        yield
    if any(left_out):
        # a step that Keras 3 leaves out for its loss scale does not count
        made = tf.identity(stack.raw(iterations)) - before
        missed.assign_add(made * tf.constant(left_out, tf.int64))


def _corrects(optimizer: Any) -> bool:
    """Whether it uses the count for nothing else; other kinds have `in_common`."""
    kinds = [kind.update_step for kind in stack.CORRECTS_MOMENTS]
    return type(optimizer).update_step in kinds or hasattr(optimizer, "in_common")

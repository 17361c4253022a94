"""A step count for each tensor: Adam's bias correction, and where averages begin.

Adam divides its moments by `1 - beta ** t`, t the optimizer's steps so far. The moments of a tensor
that joins late begin at zero all the same: its first hundred steps would be three to seven times
too long. Here t is the number of steps that the tensor itself took part in.

The steps that a tensor missed are kept, so that the state of a plain optimizer, which has no such
count, is one of tensors that missed none. They are saved with the optimizer's variables in every
format.

Source: Kingma & Ba, Adam, ICLR 2015, Sec. 3 (why moments are corrected).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf import stack

_NAME = "missed_steps"  # attribute of the optimizer


def build(optimizer: Any, count: int) -> None:
    """Count the missed steps of so many tensors, where something depends on them."""
    corrects = _corrects(optimizer) or getattr(optimizer, "use_ema", False)
    if corrects and not hasattr(optimizer, _NAME):
        missed = tf.Variable(
            tf.zeros(count, tf.int64),
            trainable=False,
            name=_NAME,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        stack.keep_with(optimizer, _NAME, missed)


def of(optimizer: Any) -> tf.Variable | None:
    """Steps that each tensor was left out of; int64, shape (tensors,); None where none count."""
    return getattr(optimizer, _NAME, None)


def start_averages(optimizer: Any, variables: Sequence[tf.Variable], *, anew: bool = False) -> None:
    """Let the moving averages of those that were never trained begin at what they are now.

    So do those of Keras 2, of an optimizer that is built in its first step: weights that were
    loaded since ours was built are where the averages begin. With `anew`, those of trained ones
    begin again.
    """
    averages, missed = getattr(optimizer, "_model_variables_moving_average", None), of(optimizer)
    if averages is None or (missed is None and not anew):
        return
    steps = optimizer.iterations.numpy() - (0 if missed is None else missed.numpy())
    for variable in map(stack.raw, variables):
        index = stack.index_of(optimizer, variable)
        if index is not None and (anew or steps[index] == 0):
            averages[index].assign(variable.read_value())


@contextlib.contextmanager
def counting(optimizer: Any, variables: Sequence[tf.Variable]) -> Iterator[None]:
    """Let each of `variables` have its own step count in the updates made in this context."""
    missed = of(optimizer)
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
    # replicas are in here together, and one of them makes the updates of all
    is_first = _corrects(optimizer) and "update_step" not in vars(optimizer)
    changed = stack.attributes(optimizer, **({"update_step": update_one} if is_first else {}))
    with changed, stack.averaging_only(optimizer, variables, taken_part):
        yield
    if any(left_out):
        # a step that Keras 3 leaves out for its loss scale does not count
        made = tf.identity(stack.raw(iterations)) - before
        missed.assign_add(made * tf.constant(left_out, tf.int64))


def _corrects(optimizer: Any) -> bool:
    """Whether it uses the count for nothing else; other kinds have `in_common`."""
    kinds = [kind.update_step for kind in stack.CORRECTS_MOMENTS]
    return type(optimizer).update_step in kinds or hasattr(optimizer, "in_common")

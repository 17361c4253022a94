"""Tries whether an optimizer of unknown make leaves alone what it is not given."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from elastic_tf.optimizers import selected

_LEFT_OUT, _TRAINED = 2, 3  # sizes of the two tensors


def check_leaves_out(optimizer: Any) -> None:
    """Refuse an optimizer that updates tensors without a gradient, or their slots.

    A copy of the optimizer updates one of two small tensors, twice. Only where its class has an
    `apply_gradients` of its own, can be copied, and on one replica; Keras's own needs no trial.

    Args:
        optimizer: of a kind that `optimizers.check` admits.

    Raises:
        TypeError: the optimizer cannot leave tensors out.

    Warns:
        UserWarning: it could not be tried.
    """
    inner = selected.unwrapped(optimizer)
    kind = type(inner)
    own = kind.apply_gradients not in (
        selected.CURRENT.apply_gradients,
        selected.LEGACY.apply_gradients,
    )
    if not own or tf.distribute.has_strategy():
        return
    try:
        copy = kind.from_config(inner.get_config())
    except Exception as error:  # code of the user's, which may raise anything
        warnings.warn(
            f"Whether {kind.__name__} leaves alone the tensors that are not selected could not be "
            f"tried, because no copy can be made from its get_config: {error!r}. It is trusted.",
            stacklevel=3,
        )
        return
    tensors = [tf.Variable(tf.ones(size)) for size in (_LEFT_OUT, _TRAINED)]
    selected.build(copy, tensors)
    # a slot has the size of its tensor
    kept = [tensors[0], *(v for v in selected.state(copy) if v.shape == (_LEFT_OUT,))]
    before = [variable.numpy().tobytes() for variable in kept]
    cause = None
    for _ in range(2):
        try:
            selected.apply_selected(copy, [tf.ones(_TRAINED)], tensors[1:])
        except Exception as error:  # as above: it asks for the gradients of all
            cause = error
    changed = [v for v, bits in zip(kept, before) if v.numpy().tobytes() != bits]
    if cause is not None or changed:
        what = f"raises {cause!r}" if cause is not None else "changes the other or its slots"
        raise TypeError(
            "`optimizer` must leave alone the tensors that it is given no gradient for, and their "
            f"slots. Received: {kind.__name__}, which {what} when it updates one of two tensors. "
            "Let its apply_gradients touch the given variables only."
        ) from cause

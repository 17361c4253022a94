"""Tries whether an optimizer of unknown make leaves alone what it is not given."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf import optimizers


def check_leaves_out(optimizer: Any) -> None:
    """Refuse an optimizer that updates tensors without a gradient, or their slots.

    A copy of the optimizer updates one of two small tensors, twice. Only where its class has an
    `apply_gradients` of its own, can be copied, and on one replica; Keras's own needs no trial.

    Args:
        optimizer: of a kind that `optimizers.check` admits.

    Raises:
        TypeError: the optimizer cannot leave tensors out.
    """
    inner = optimizers.unwrapped(optimizer)
    kind = type(inner)
    own = kind.apply_gradients not in (
        optimizers.CURRENT.apply_gradients,
        optimizers.LEGACY.apply_gradients,
    )
    if not own or tf.distribute.has_strategy():
        return
    try:
        copy = kind.from_config(inner.get_config())
    except Exception:  # whatever a class of the user's raises: it cannot be copied
        return
    tensors = [tf.Variable([1.0, 2.0], name=name) for name in ("left_out", "trained")]
    optimizers.build(copy, tensors)
    kept = [tensors[0], *(v for v in optimizers.state(copy) if "left_out" in v.name)]
    before = [variable.numpy().tobytes() for variable in kept]
    cause = None
    for _ in range(2):
        try:
            optimizers.apply_selected(copy, [tf.ones(2)], tensors[1:])
        except Exception as error:  # as above: it asks for the gradients of all
            cause = error
    changed = [v.name for v, bits in zip(kept, before) if v.numpy().tobytes() != bits]
    if cause is not None or changed:
        what = f"raises {cause!r}" if cause is not None else f"changes {', '.join(changed)}"
        raise TypeError(
            "`optimizer` must leave alone the tensors that it is given no gradient for, and their "
            f"slots. Received: {kind.__name__}, which {what} when it updates one of two tensors. "
            "Let its apply_gradients touch the given variables only."
        ) from cause

"""Layers that are left out of training, while the forward pass of one step is traced.

A layer with buffers (batch normalisation) of whose own trainable tensors none is trained runs as
Keras runs it with `layer.trainable = False`. For a batch normalisation that is inference mode:
its moving statistics stand still, so the batch must be normalised with them, or the layers after it
would be trained on activations that inference never produces. So a mask and a plain Keras model
with frozen layers train alike, up to the rounding of normalisations that are folded into the
convolutions before them.

A layer with buffers but no trainable tensor of its own cannot be left out: it behaves as in Keras.
With `compile(statistics="stored")` all batch normalisations run in inference mode and are folded,
trained or not.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.stack import attributes
from elastic_tf.train.engine.modes import folding
from elastic_tf.train.engine.modes.operations import held, is_held


@contextlib.contextmanager
def frozen(layers: Sequence[tf.keras.layers.Layer], *, is_left_out: bool = True) -> Iterator[None]:
    """Run `layers` as not trainable; if they are left out, with their own variables protected.

    The protection serves layers that assign to their buffers without asking `self.trainable`:
    the assignment is left out of the graph. Only variable methods are caught, raw ops are not.
    """
    with contextlib.ExitStack() as changes:
        for one in layers:
            change = functools.partial(_freeze, one, is_left_out)
            changes.enter_context(held(("frozen", id(one), is_left_out), change))
        yield


def left_out(
    model: tf.keras.Model, variables: Sequence[tf.Variable]
) -> list[tf.keras.layers.Layer]:
    """Layers with buffers and trainable tensors of their own, none of them in `variables`.

    Layers that the user froze are not listed: Keras takes care of them. Normalisations without
    trainable tensors are, where the model takes stored statistics.
    """
    trained = {id(stack.raw(variable)) for variable in variables}
    stored = _on_stored_statistics(model)
    found = ((layer, *stack.own_variables(layer)) for layer in _not_frozen(model))
    return [
        layer
        for layer, own, buffers in found
        if buffers and (own or layer in stored) and trained.isdisjoint(map(id, own))
    ]


def as_compiled(model: tf.keras.Model) -> contextlib.AbstractContextManager[None]:
    """Run batch normalisations on the statistics that the model was compiled for.

    Scale and offset get their gradients on stored statistics too: a tape watches variables.
    """
    return frozen(_on_stored_statistics(model), is_left_out=False)


def _on_stored_statistics(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    state = getattr(model, "_elastic", None)  # of an elastic model
    if state is None or state.statistics == "batch":
        return []
    return [layer for layer in _not_frozen(model) if isinstance(layer, stack.NORMALISATIONS)]


def _not_frozen(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    """The layers that the user did not freeze."""
    return [
        one
        for one in model._flatten_layers()
        if one.trainable or any(is_held(("frozen", id(one), how)) for how in (True, False))
    ]


def _freeze(layer: tf.keras.layers.Layer, is_left_out: bool, changes: contextlib.ExitStack) -> None:
    # Not `layer.trainable`: its setter would freeze the layers inside as well.
    changes.enter_context(attributes(layer, _trainable=False))
    changes.enter_context(folding.folded(layer))
    if not is_left_out:
        return
    starts = ("assign", "scatter_", "batch_scatter_")
    for variable in itertools.chain(*stack.own_variables(layer)):
        names = [name for name in dir(type(variable)) if name.startswith(starts)]
        changes.enter_context(attributes(variable, **dict.fromkeys(names, _skip(variable))))


def _skip(variable: tf.Variable) -> Any:
    """An assignment that leaves `variable` as it is."""
    return lambda *args, **kwargs: variable

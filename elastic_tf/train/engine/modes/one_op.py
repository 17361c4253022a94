"""Layers that run in one op of TensorFlow, where Keras makes more of them, or has XLA compile it.

Whatever calls an elastic model, training or not, runs these: batch normalisations of Keras 3, and
convolutions of groups, which XLA computes hundreds of times as slowly on a CPU. Without oneDNN
TensorFlow has no other gradients of these on a CPU: there they stay as Keras has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.stack import attributes
from elastic_tf.train.engine.modes.operations import held

#: False: layers run as Keras writes them, to the bit.
IS_ON = True


@contextlib.contextmanager
def in_one_op(model: tf.keras.Model) -> Iterator[None]:
    """Let the layers of a model run in one op each; what has been changed of a layer stays."""

    def change(changes: contextlib.ExitStack) -> None:
        for layer in model._flatten_layers():
            others = {k: v for k, v in _instead(layer).items() if k not in vars(layer)}
            changes.enter_context(attributes(layer, **others))

    with held(("one op", id(model)), change):
        yield


def normalised(layer: Any, inputs: tf.Tensor, **options: Any) -> tf.Tensor:
    """What a batch normalisation makes of its inputs, in one op where it can be."""
    call = _instead(layer).get("call") or type(layer).call.__get__(layer)
    return call(inputs, **options)


def _instead(layer: Any) -> dict[str, Any]:
    return stack.in_one_op(layer) if IS_ON else {}

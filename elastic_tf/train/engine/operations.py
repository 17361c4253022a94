"""Layers that multiply by a kernel or run in one op, and what is changed of layers in a trace.

Whatever calls an elastic model, training or not, runs layers in one op of TensorFlow where Keras
makes more of them, or has XLA compile it: batch normalisations of Keras 3, and convolutions of
groups, which XLA computes hundreds of times as slowly on a CPU. Without oneDNN TensorFlow has no
other gradients of these on a CPU: there they stay as Keras has them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.stack import attributes

L = tf.keras.layers
Plain = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # of inputs and kernel
Operation = Callable[[Plain, tf.Tensor, tf.Tensor], tf.Tensor]

_lock = threading.RLock()
_held: dict[Hashable, tuple[contextlib.ExitStack, int]] = {}  # how to take it back, and holders


def kernel_of(layer: Any) -> tf.Variable | None:
    """The kernel of a Conv2D, DepthwiseConv2D or Dense of Keras itself; None of other layers.

    Convolutions have channels last and no dilation. What another class makes of a kernel is not
    known.
    """
    if type(layer) in (L.Conv2D, L.DepthwiseConv2D):
        if layer.data_format != "channels_last" or set(layer.dilation_rate) != {1}:
            return None
    elif type(layer) is not L.Dense:
        return None
    kernel = stack.kernel(layer)
    return None if kernel is None else stack.raw(kernel)


def replaced(layer: Any, operation: Operation) -> AbstractContextManager[None]:
    """Let a layer with such a kernel, built, make its outputs by another operation.

    It is called with the layer's own operation, its inputs and its kernel, which are the arguments
    of the former. Bias and activation stay the layer's.
    """

    def plain(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        if type(layer) is L.Dense:
            is_matrix = x.shape.rank == 2
            return tf.matmul(x, kernel) if is_matrix else tf.tensordot(x, kernel, 1)
        if type(layer) is L.DepthwiseConv2D:
            return tf.nn.depthwise_conv2d(x, kernel, [1, *layer.strides, 1], layer.padding.upper())
        return tf.nn.conv2d(x, kernel, [*layer.strides], layer.padding.upper())

    def call(inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
        del training
        x, kernel = tf.cast(inputs, layer.compute_dtype), tf.convert_to_tensor(stack.kernel(layer))
        outputs = operation(plain, x, kernel)
        if layer.use_bias:
            outputs = tf.nn.bias_add(outputs, tf.convert_to_tensor(layer.bias))
        return outputs if layer.activation is None else layer.activation(outputs)

    return attributes(layer, call=call)


class Use(NamedTuple):
    """One use of a kernel: its layer, what it multiplies, and the product without bias."""

    kernel: tf.Variable
    layer: Any
    x: tf.Tensor
    y: tf.Tensor


@contextlib.contextmanager
def recorded(model: tf.keras.Model) -> Iterator[list[Use]]:
    """The uses of all kernels while a model is called, in their order."""
    uses: list[Use] = []

    def listening(layer: Any, kernel_of_layer: tf.Variable) -> Operation:
        def operation(plain: Plain, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
            uses.append(Use(kernel_of_layer, layer, x, plain(x, kernel)))
            return uses[-1].y

        return operation

    with contextlib.ExitStack() as changes:
        for layer in model._flatten_layers():
            kernel = kernel_of(layer) if layer.built else None
            if kernel is not None:
                changes.enter_context(replaced(layer, listening(layer, kernel)))
        yield uses


@contextlib.contextmanager
def held(key: Hashable, change: Callable[[contextlib.ExitStack], None]) -> Iterator[None]:
    """Hold a change, which says on a stack how it is taken back; all who share it have its key."""
    with _lock:
        if key not in _held:
            with contextlib.ExitStack() as undo:
                change(undo)
                _held[key] = undo.pop_all(), 0
        undo, holders = _held[key]
        _held[key] = undo, holders + 1
    try:
        yield
    finally:
        with _lock:
            undo, holders = _held.pop(key)
            if holders > 1:
                _held[key] = undo, holders - 1
            else:
                undo.close()


def is_held(key: Hashable) -> bool:
    """Whether somebody holds the change of that key."""
    return key in _held


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

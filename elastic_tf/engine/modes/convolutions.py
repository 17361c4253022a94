"""Convolutions whose gradients are filtered, while the forward pass of one step is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.engine.modes.filtering import Filter
from elastic_tf.plan import FILTERED, NAMES, Plan

L = tf.keras.layers


def check(model: tf.keras.Model, tensors: Sequence[tf.Variable], plan: Plan) -> None:
    """Refuse a plan with a mode that a tensor cannot have.

    Raises:
        ValueError: a filtered tensor is no kernel of a two-dimensional convolution, with channels
            last and without dilation.
    """
    layers = _layers(model)
    for tensor, mode in zip(tensors, plan.modes):
        if mode in FILTERED and id(tensor) not in layers:
            raise ValueError(
                "Filtered are kernels of Conv2D and DepthwiseConv2D, with channels last and "
                f"without dilation. Received: the mode '{NAMES[mode]}' for '{tensor.name}'. Make "
                "it exact or frozen."
            )


def kernels(model: Any, r: int = 1) -> np.ndarray:
    """True for the kernels that can be filtered by patches of side r; bool, shape (N,)."""
    layers = _layers(model)
    found = (layers.get(id(tensor)) for tensor in model.tensors)
    return np.array([layer is not None and _least_side(layer) >= r for layer in found])


def _least_side(layer: Any) -> int:
    """Pixels of a layer's outputs along the shorter axis; 1 where they are not known."""
    nodes = getattr(layer, "_inbound_nodes", ())
    sides = [node.output_shapes[axis] or 1 for node in nodes for axis in (1, 2)]
    return min(sides, default=1)


@contextlib.contextmanager
def filtered(model: tf.keras.Model, tensors: Sequence[tf.Variable], plan: Plan) -> Iterator[None]:
    """Trace the layers of filtered kernels with gradients that are filtered."""
    layers, changed = _layers(model), []
    for tensor, mode in zip(tensors, plan.modes):
        if mode in FILTERED:
            layer = layers[id(tensor)]
            changed.append(layer)
            _install(layer, FILTERED[mode])
    try:
        yield
    finally:
        for layer in changed:
            for name in ("convolution_op", "_jit_compiled_convolution_op", "call"):
                layer.__dict__.pop(name, None)


def _layers(model: tf.keras.Model) -> dict[int, Any]:
    """The layers that can be filtered, by the id of their kernel."""
    found = {}
    for layer in model._flatten_layers():
        # of Keras itself: what another class makes of a kernel is not known
        if type(layer) in (L.Conv2D, L.DepthwiseConv2D) and layer.built:
            kernel = layer.kernel if type(layer) is L.Conv2D else layer.depthwise_kernel
            if layer.data_format == "channels_last" and set(layer.dilation_rate) == {1}:
                found[id(kernel)] = layer
    return found


def _install(layer: Any, r: int) -> None:
    """Let the layer filter its gradients from its next call on."""
    is_depthwise = type(layer) is L.DepthwiseConv2D
    options = {"strides": [*layer.strides], "padding": layer.padding.upper()}

    def convolve(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        if is_depthwise:
            strides = [1, *options["strides"], 1]
            return tf.nn.depthwise_conv2d(x, kernel, strides, options["padding"])
        return tf.nn.conv2d(x, kernel, **options)

    def operation(x: tf.Tensor, kernel: Any) -> tf.Tensor:
        kernel = tf.convert_to_tensor(kernel)
        made = Filter(x.shape, kernel.shape, r, layer.strides[0], options["padding"], is_depthwise)
        return _with_gradients(convolve, made, x, kernel)

    def call(inputs: tf.Tensor) -> tf.Tensor:
        outputs = operation(inputs, layer.depthwise_kernel)
        if layer.use_bias:
            outputs = tf.nn.bias_add(outputs, layer.bias)
        return outputs if layer.activation is None else layer.activation(outputs)

    if is_depthwise:
        layer.__dict__["call"] = call
    else:  # the second one is for several groups
        layer.__dict__["convolution_op"] = operation
        layer.__dict__["_jit_compiled_convolution_op"] = operation


def _with_gradients(
    convolve: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    made: Filter,
    x: tf.Tensor,
    kernel: tf.Tensor,
) -> tf.Tensor:
    @tf.custom_gradient
    def convolved(x: tf.Tensor, kernel: tf.Tensor) -> Any:
        # not of x alone: a cached prefix ends at x, and the sums of it are work of the step
        inputs, _ = tf.identity_n([x, kernel])
        sums = made.sums(inputs)  # all that is kept of it

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            means = made.means(upstream)
            return made.of_input(means, kernel), made.of_kernel(sums, means)

        return convolve(x, kernel), gradient

    return convolved(x, kernel)

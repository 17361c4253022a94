"""How the kinds of layers that are known deal with channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.baselines.prunetrain.groups import Labels, Rule, Site

L = tf.keras.layers
_Shape = tuple[Any, ...]

# Functions of each number alone.
_ELEMENTWISE = frozenset(
    {
        "elu",
        "exponential",
        "gelu",
        "hard_sigmoid",
        "leaky_relu",
        "linear",
        "mish",
        "relu",
        "relu6",
        "selu",
        "sigmoid",
        "silu",
        "softplus",
        "softsign",
        "swish",
        "tanh",
    }
)


def _is_elementwise(activation: Any) -> bool:
    """Whether an activation looks at each number alone."""
    if activation is None:
        return True
    own = {id(getattr(tf.keras.activations, name, None)) for name in _ELEMENTWISE}
    own |= {id(getattr(tf.nn, name, None)) for name in _ELEMENTWISE}
    return id(activation) in own


def _made(
    site: Site, width: str, kernel: tf.Variable, sides: tuple[Any, ...], labels: Labels
) -> np.ndarray:
    """New channels of a layer; those that its activation mixes stay.

    Args:
        site: the layer.
        width: its attribute that counts them.
        kernel: what makes them.
        sides: axis of the kernel's input channels, their labels, axis of its output channels.
        labels: gives the new ones.
    """
    layer = site.layer
    into, taken, out = sides
    made = labels.new(getattr(layer, width), pinned=not _is_elementwise(layer.activation))
    site.side(kernel, into, taken)
    site.side(kernel, out, made)
    site.axis(layer.bias, 0, made)
    site.width = (width, made)
    return made


def _convolution(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray | None:
    """Kernel (..., input, output)."""
    layer = site.layer
    if layer.groups != 1:
        return None
    sides = (layer.rank, taken[0], layer.rank + 1)
    return _made(site, "filters", layer.kernel, sides, labels)


def _transposed(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray:
    """Kernel (..., output, input)."""
    layer = site.layer
    sides = (layer.rank + 1, taken[0], layer.rank)
    return _made(site, "filters", layer.kernel, sides, labels)


def _depthwise(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray | None:
    """Kernel (..., channel, multiplier): a channel makes channels of its own, and goes with them.

    It has no groups in the group lasso: it stands between the layers that share its channels.
    """
    layer = site.layer
    if not _is_elementwise(layer.activation):
        return None
    made = np.repeat(taken[0], layer.depth_multiplier)
    site.axis(layer.depthwise_kernel, layer.rank, taken[0])
    site.axis(layer.bias, 0, made)
    return made


def _separable(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray:
    """A depthwise convolution and one of 1x1: the groups are those of the second."""
    layer = site.layer
    site.axis(layer.depthwise_kernel, layer.rank, taken[0])
    between = np.repeat(taken[0], layer.depth_multiplier)
    sides = (layer.rank, between, layer.rank + 1)
    return _made(site, "filters", layer.pointwise_kernel, sides, labels)


def _dense(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray:
    """Kernel (input, output)."""
    return _made(site, "units", site.layer.kernel, (0, taken[0], 1), labels)


def _batch_normalisation(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray | None:
    """Weights of one number for each channel."""
    layer = site.layer
    virtual = getattr(layer, "virtual_batch_size", None) or getattr(layer, "adjustment", None)
    if list(layer.axis) != [len(shape)] or virtual:
        return None
    if any(tuple(weight.shape) != taken[0].shape for weight in layer.weights):
        return None
    for weight in layer.weights:
        site.axis(weight, 0, taken[0])
    return taken[0]


def _each_channel(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray:
    """Pooling, padding, dropout, activations of their own: each channel alone."""
    return taken[0]


def _dropout(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray | None:
    """What is dropped may be of a fixed size."""
    noise = site.layer.noise_shape
    return taken[0] if noise is None or noise[-1] in (None, 1) else None


def _activation(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray | None:
    return taken[0] if _is_elementwise(site.layer.activation) else None


def _rescaling(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray | None:
    """One scale for all channels; a list of scales belongs to the channels that there are."""
    layer = site.layer
    return taken[0] if np.ndim(layer.scale) == np.ndim(layer.offset) == 0 else None


def _sum(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray | None:
    """A sum, product, mean, ... of tensors has a channel as long as one of them has."""
    if any(len(other) != len(taken[0]) for other in taken):
        return None  # one channel that is spread over all
    for other in taken[1:]:
        labels.join(taken[0], other)
    return taken[0]


def _concatenation(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray | None:
    if site.layer.axis in (-1, len(shape)):
        return np.concatenate(taken)
    return _sum(site, taken, shapes, shape, labels)


def _flatten(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray | None:
    """Every pixel's channels one after the other."""
    return None if shape[0] is None else np.tile(taken[0], shape[0] // len(taken[0]))


def _reshape(
    site: Site, taken: list[np.ndarray], shapes: list[_Shape], shape: _Shape, labels: Labels
) -> np.ndarray | None:
    """Leaves the channels alone where the last axis stays."""
    if not shape or shape[-1] != len(taken[0]):
        return None
    site.width = ("target_shape", taken[0])
    return taken[0]


def width_config(key: str, config: dict[str, Any], count: int) -> Any:
    """The value of `key` in a layer's config when `count` channels are left."""
    if key != "target_shape":
        return count
    *leading, last = config[key]
    return (*leading, last if last == -1 else count)


def _for_all(rule: Callable[..., Any], *names: str) -> dict[type, Rule]:
    return {getattr(L, name): rule for name in names}


RULES: dict[type, Rule] = {
    **_for_all(_convolution, "Conv1D", "Conv2D", "Conv3D"),
    **_for_all(_transposed, "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"),
    **_for_all(_depthwise, "DepthwiseConv1D", "DepthwiseConv2D"),
    **_for_all(_separable, "SeparableConv1D", "SeparableConv2D"),
    **_for_all(_dense, "Dense"),
    **_for_all(_batch_normalisation, "BatchNormalization"),
    **_for_all(_activation, "Activation"),
    **_for_all(_each_channel, "ReLU", "LeakyReLU", "ELU", "ThresholdedReLU"),
    **_for_all(_dropout, "Dropout"),
    **_for_all(_each_channel, "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
    **_for_all(_each_channel, "GaussianDropout", "GaussianNoise"),
    **_for_all(_each_channel, "MaxPooling1D", "MaxPooling2D", "MaxPooling3D"),
    **_for_all(_each_channel, "AveragePooling1D", "AveragePooling2D", "AveragePooling3D"),
    **_for_all(_each_channel, "GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D"),
    **_for_all(_each_channel, "GlobalAveragePooling1D", "GlobalAveragePooling2D"),
    **_for_all(_each_channel, "GlobalAveragePooling3D"),
    **_for_all(_each_channel, "ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D"),
    **_for_all(_each_channel, "Cropping1D", "Cropping2D", "Cropping3D"),
    **_for_all(_each_channel, "UpSampling1D", "UpSampling2D", "UpSampling3D", "Resizing"),
    **_for_all(_rescaling, "Rescaling"),
    **_for_all(_sum, "Add", "Subtract", "Average", "Multiply", "Maximum", "Minimum"),
    **_for_all(_concatenation, "Concatenate"),
    **_for_all(_flatten, "Flatten"),
    **_for_all(_reshape, "Reshape"),
}

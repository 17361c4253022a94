"""The lite residual module: a small branch beside a frozen block that learns what to add to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from related.tinytl.blocks import Block

L = tf.keras.layers

_POOL = 2  # the branch works at half the resolution of the block's input
_CHANNELS_PER_GROUP = 8  # of group normalisation, as in the authors' code
_KERNEL, _GROUPS = 5, 2  # of the grouped convolution, as in the authors' code


@tf.keras.utils.register_keras_serializable(package="elastic_tf")
class LiteResidual(tf.keras.layers.Layer):
    """Adds a branch to the output of a block: called as `layer([block input, block output])`.

    Average pooling to half the resolution, a grouped convolution, group normalisation, ReLU, a
    convolution 1x1, group normalisation; then bilinear interpolation to the size of the block's
    output. The second normalisation starts with a scale of zero, so that nothing is added at first.
    Where the pooled image is a single point, the branch sees the mean of the image.

    Args:
        width: channels between the two convolutions.
        kernel_size: of the grouped convolution, at most; smaller where the pooled image is.
        groups: of the grouped convolution; 1 where the channels cannot be divided.

    Source: Cai et al., TinyTL, NeurIPS 2020, Sec. 3, and github.com/mit-han-lab/tinyml. There the
    branches are pre-trained with the backbone; here they start at random, as its
    `--random_init_lite_residual` does.
    """

    def __init__(
        self, width: int, *, kernel_size: int = _KERNEL, groups: int = _GROUPS, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.width, self.kernel_size, self.groups = width, kernel_size, groups

    def get_config(self) -> dict[str, Any]:
        """What the layer is made from."""
        own = {"width": self.width, "kernel_size": self.kernel_size, "groups": self.groups}
        return {**super().get_config(), **own}

    def build(self, input_shape: Sequence[tf.TensorShape]) -> None:
        """Make the branch for a block that maps one shape to the other."""
        (*_, height, width, channels), (*_, out_height, out_width, out_channels) = input_shape
        pooled = min(height, width) // _POOL
        self._is_global = pooled <= 1
        kernel, strides = 1, (1, 1)
        if not self._is_global:
            # odd, so that a pixel of the result lies over one of the input
            kernel = min(self.kernel_size, pooled - 1 + pooled % 2)
            strides = (round(height / out_height), round(width / out_width))
        width = self.width
        groups = 1 if channels % self.groups or width % self.groups else self.groups
        options: dict[str, Any] = {"dtype": self.dtype_policy}
        convolution = {**options, "use_bias": False, "kernel_initializer": "he_normal"}
        of_group = {**convolution, "strides": strides, "padding": "same"}
        # Not one grouped convolution: Keras 2.15 hands it to XLA, where neither its time nor its
        # operations can be seen.
        self.grouped = [
            L.Conv2D(width // groups, kernel, name=f"grouped{index + 1}", **of_group)
            for index in range(groups)
        ]
        self.norm = _group_normalisation(width, name="norm", **options)
        self.pointwise = L.Conv2D(out_channels, 1, name="pointwise", **convolution)
        self.last_norm = _group_normalisation(
            out_channels, name="last_norm", gamma_initializer="zeros", center=False, **options
        )
        super().build(input_shape)

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """The block's output with the branch added."""
        block_input, block_output = inputs
        if self._is_global:
            x = tf.reduce_mean(block_input, axis=(1, 2), keepdims=True)
        else:
            x = tf.nn.avg_pool2d(block_input, _POOL, _POOL, "VALID")
        parts = tf.split(x, len(self.grouped), axis=-1)
        x = tf.concat([layer(part) for layer, part in zip(self.grouped, parts)], axis=-1)
        x = tf.nn.relu(self.norm(x))
        x = self.last_norm(self.pointwise(x))
        if not self._is_global:
            x = tf.image.resize(x, block_output.shape[1:3], method="bilinear")
        return block_output + tf.cast(x, block_output.dtype)


def fitting(block: Block, **options: Any) -> LiteResidual:
    """A module for one block, at most as wide as its narrowest convolution, and lighter than it.

    Where the grouped convolution would take more than half of the block's operations, there are
    more groups, up to four times as many, or the kernel is the next smaller one. The source's
    inverted residuals come out as they are there: 5x5 in two groups.
    """
    channels = block.input.shape[-1]
    width = min(channels, block.width)
    pixels = math.prod(-(-(size or 0) // _POOL) for size in block.output.shape[1:3])
    for kernel in range(_KERNEL, 0, -2):
        for groups in (_GROUPS, 2 * _GROUPS, 4 * _GROUPS):
            if pixels * kernel**2 * channels * width // groups <= block.operations // 2:
                return LiteResidual(width, kernel_size=kernel, groups=groups, **options)
    return LiteResidual(width, kernel_size=1, **options)


def _group_normalisation(channels: int, **options: Any) -> tf.keras.layers.Layer:
    """Normalisation that needs no statistics of a batch, for batches are small on devices."""
    most = max(channels // _CHANNELS_PER_GROUP, 1)
    groups = next(count for count in range(most, 0, -1) if channels % count == 0)
    return L.GroupNormalization(groups, epsilon=1e-5, **options)

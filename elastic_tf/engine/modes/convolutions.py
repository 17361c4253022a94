"""Convolutions whose gradients are filtered."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.engine.modes.filtering import Filter
from elastic_tf.engine.modes.operations import L, Plain, kernel_of, replaced
from elastic_tf.engine.modes.registry import Mode
from elastic_tf.plan import FILTERED, NAMES


def _kernel(layer: Any, r: int) -> tf.Variable | None:
    """The kernel of a convolution whose outputs patches of side r fit into."""
    kernel = None if type(layer) is L.Dense else kernel_of(layer)
    return kernel if kernel is not None and _least_side(layer) >= r else None


def _least_side(layer: Any) -> int:
    """Pixels of a layer's outputs along the shorter axis; 1 where they are not known."""
    sides = [shape[axis] or 1 for shape in stack.output_shapes(layer) for axis in (1, 2)]
    return min(sides, default=1)


def _filtered(r: int) -> Any:
    """A context that lets a layer filter its gradients by patches of side r."""

    def context(layer: Any) -> AbstractContextManager[None]:
        is_depthwise = type(layer) is L.DepthwiseConv2D

        def operation(plain: Plain, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
            padding = layer.padding.upper()
            made = Filter(x.shape, kernel.shape, r, layer.strides, padding, is_depthwise)
            return _with_gradients(plain, made, x, kernel)

        return replaced(layer, operation)

    return context


def _with_gradients(
    convolve: Plain,
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


MODES = tuple(
    Mode(
        NAMES[code],
        code,
        functools.partial(_kernel, r=r),
        _filtered(r),
        f"kernels of Conv2D and DepthwiseConv2D whose outputs are known to have at least {r} "
        "pixels a side, with channels last and without dilation",
        drops=True,
    )
    for code, r in FILTERED.items()
)

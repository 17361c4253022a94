"""Layers of whose kernel a share of the output channels is trained.

The weight gradient is computed from these channels of the upstream gradient alone; the gradient of
the inputs is exact. Which channels they are is a variable, so that others need no new trace.

Source: Quelennec et al., Towards On-device Learning on the Edge: Ways to Select Neurons to Update
under a Budget Constraint, WACV 2024 (neurons); Kwon et al., TinyTrain, ICML 2024, Sec. 2.2
(channels).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from elastic_tf.engine.modes.operations import L, Plain, kernel_of, replaced
from elastic_tf.engine.modes.registry import Mode
from elastic_tf.optimizers.slices import Slice
from elastic_tf.plan import CHANNELS, NAMES, SOME

_RULES = ("regularizer", "constraint")


def _kernel(layer: Any) -> tf.Variable | None:
    """The kernel of which channels can be trained alone; None where there is none."""
    kernel = kernel_of(layer)
    if kernel is None or _has_rule(layer) or kernel.shape[_axis(layer)] < 2:
        return None
    return kernel if type(layer) is not L.Conv2D or layer.groups == 1 else None


def _has_rule(layer: Any) -> bool:
    """Whether something other than the loss asks for the whole kernel."""
    kinds = (f"{of}_{rule}" for of in ("kernel", "depthwise") for rule in _RULES)
    return any(getattr(layer, name, None) is not None for name in kinds)


def _axis(layer: Any) -> int:
    return {L.Dense: 1, L.DepthwiseConv2D: 2}.get(type(layer), 3)


def _mode(code: int, keeps: float | None) -> Mode:
    def context(layer: Any, some: Slice) -> AbstractContextManager[None]:
        def operation(plain: Plain, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
            return _with_gradients(layer, some, plain, x, kernel)

        return replaced(layer, operation)

    what = (
        "kernels of Dense, Conv2D and DepthwiseConv2D with at least two channels, without groups, "
        "dilation, regularizer and constraint"
    )
    return Mode(NAMES[code], code, _kernel, context, what, keeps, _axis)


def _with_gradients(
    layer: Any, some: Slice, plain: Plain, x: tf.Tensor, kernel: tf.Tensor
) -> tf.Tensor:
    """What the layer's own operation gives, with gradients for its inputs and for the slice."""

    @tf.custom_gradient
    def multiplied(x: tf.Tensor, part: tf.Tensor) -> Any:
        kept = x
        if type(layer) is L.DepthwiseConv2D:
            # all that is kept of the inputs; not of x alone: a cached prefix ends at x
            kept = some.taken(tf.identity_n([x, part])[0], 3)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            chosen = gathered(layer, some, upstream)
            return of_input(layer, x, kernel, upstream), of_kernel(layer, kept, part.shape, chosen)

        return plain(x, kernel), gradient

    return multiplied(x, tf.cast(some.variable, x.dtype))


def gathered(layer: Any, some: Slice, upstream: tf.Tensor) -> tf.Tensor:
    """The channels of an upstream gradient that the slice makes."""
    is_depthwise = type(layer) is L.DepthwiseConv2D
    each = layer.depth_multiplier if is_depthwise else 1
    return some.taken(upstream, upstream.shape.rank - 1, each)


def of_kernel(layer: Any, x: tf.Tensor, shape: tf.TensorShape, upstream: tf.Tensor) -> tf.Tensor:
    """The gradient by a kernel, or slice, of that shape."""
    if type(layer) is L.Dense:
        # not of x alone: a cached prefix ends at x
        both = tf.identity_n([x, upstream])
        flat = (tf.reshape(part, (-1, part.shape[-1])) for part in both)
        return tf.matmul(*flat, transpose_a=True)
    is_depthwise = type(layer) is L.DepthwiseConv2D
    ops = tf.raw_ops
    gradient = ops.DepthwiseConv2dNativeBackpropFilter if is_depthwise else ops.Conv2DBackpropFilter
    sizes = shape.as_list()
    return gradient(input=x, filter_sizes=sizes, out_backprop=upstream, **_options(layer))


def of_input(layer: Any, x: tf.Tensor, kernel: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """The gradient by the inputs."""
    if type(layer) is L.Dense:
        return tf.tensordot(upstream, kernel, [[-1], [1]])
    is_depthwise = type(layer) is L.DepthwiseConv2D
    ops = tf.raw_ops
    gradient = ops.DepthwiseConv2dNativeBackpropInput if is_depthwise else ops.Conv2DBackpropInput
    sizes = tf.shape(x)
    return gradient(input_sizes=sizes, filter=kernel, out_backprop=upstream, **_options(layer))


def _options(layer: Any) -> dict[str, Any]:
    return {"strides": [1, *layer.strides, 1], "padding": layer.padding.upper()}


MODES = tuple(_mode(code, None if code == SOME else 1.0 / (code - 10)) for code in sorted(CHANNELS))

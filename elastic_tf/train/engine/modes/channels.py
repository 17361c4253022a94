"""Layers of whose kernel a share of the output channels is trained.

The weight gradient is computed from these channels of the upstream gradient alone; the gradient of
the inputs is exact. Which channels they are is a variable, so that others need no new trace.

Source: Quelennec et al., Towards On-device Learning on the Edge: Ways to Select Neurons to Update
under a Budget Constraint, WACV 2024 (neurons); Kwon et al., TinyTrain, ICML 2024, Sec. 2.2
(channels).
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from elastic_tf.plan import CHANNELS, NAMES, SOME
from elastic_tf.train.engine.modes.operations import L, Plain, kernel_of, replaced
from elastic_tf.train.engine.modes.registry import Mode
from elastic_tf.train.optimizers.slices import Slice

# What asks for the whole kernel beside the loss.
_RULES = [
    f"{of}_{rule}" for of in ("kernel", "depthwise") for rule in ("regularizer", "constraint")
]


def _kernel(layer: Any) -> tf.Variable | None:
    """The kernel of which channels can be trained alone; None where there is none."""
    kernel = kernel_of(layer)
    has_rule = any(getattr(layer, name, None) is not None for name in _RULES)
    if kernel is None or has_rule or kernel.shape[_axis(layer)] < 2:
        return None
    return kernel if type(layer) is not L.Conv2D or layer.groups == 1 else None


def _axis(layer: Any) -> int:
    return {L.Dense: 1, L.DepthwiseConv2D: 2}.get(type(layer), 3)


def _context(layer: Any, some: Slice) -> AbstractContextManager[None]:
    return replaced(layer, functools.partial(_with_gradients, layer, some))


def _with_gradients(
    layer: Any, some: Slice, plain: Plain, x: tf.Tensor, kernel: tf.Tensor
) -> tf.Tensor:
    """What the layer's own operation gives, with gradients for its inputs and for the slice."""
    is_depthwise = type(layer) is L.DepthwiseConv2D

    @tf.custom_gradient
    def multiplied(x: tf.Tensor, part: tf.Tensor) -> Any:
        kept = x
        if is_depthwise:
            # all that is kept of the inputs; not of x alone: a cached prefix ends at x
            kept = some.taken(tf.identity_n([x, part])[0], 3)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            each = layer.depth_multiplier if is_depthwise else 1
            chosen = some.taken(upstream, upstream.shape.rank - 1, each)
            if type(layer) is L.Dense:
                both = tf.identity_n([x, chosen])  # not of x alone: a cached prefix ends at x
                flat = (tf.reshape(part, (-1, part.shape[-1])) for part in both)
                of_x = tf.tensordot(upstream, kernel, [[-1], [1]])
                return of_x, tf.matmul(*flat, transpose_a=True)
            kind = "DepthwiseConv2dNative" if is_depthwise else "Conv2D"
            of_input, of_kernel = (
                getattr(tf.raw_ops, f"{kind}Backprop{by}") for by in ("Input", "Filter")
            )
            options = {"strides": [1, *layer.strides, 1], "padding": layer.padding.upper()}
            return (
                of_input(input_sizes=tf.shape(x), filter=kernel, out_backprop=upstream, **options),
                of_kernel(
                    input=kept, filter_sizes=part.shape.as_list(), out_backprop=chosen, **options
                ),
            )

        return plain(x, kernel), gradient

    return multiplied(x, tf.cast(some.variable, x.dtype))


MODES = tuple(
    Mode(
        NAMES[code],
        code,
        _kernel,
        _context,
        "kernels of Dense, Conv2D and DepthwiseConv2D with at least two channels, without groups, "
        "dilation, regularizer and constraint",
        keeps=None if code == SOME else 1.0 / (code - 10),
        axis=_axis,
    )
    for code in sorted(CHANNELS)
)

"""Gradients of kernels that cost less: filtered by patches, or of some channels.

**Filtered** (CVPR 2023): the upstream gradient is averaged over patches of r x r pixels. Each mean
meets the sum of the inputs behind its patch, so that neither gradient takes a convolution, and the
forward pass hands on one number per patch instead of its input. Source: Yang, Li, Marculescu,
Efficient On-device Training via Gradient Filtering, CVPR 2023, Sec. 3, Eqs. 2 to 5, 20, 21. Where
the stride s is above 1, which the paper leaves out, a patch stands for r * s pixels of the input a
side, and both gradients are divided by s * s.

**Of some channels**: the weight gradient is computed from some output channels of the upstream
gradient alone; the gradient of the inputs is exact. Which channels they are is a variable, so that
others need no new trace. Source: Quelennec et al., Towards On-device Learning on the Edge: Ways to
Select Neurons to Update under a Budget Constraint, WACV 2024 (neurons); Kwon et al., TinyTrain,
ICML 2024, Sec. 2.2 (channels).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.train.engine.operations import L, Plain, kernel_of, replaced
from elastic_tf.train.optimizers.apply import Slice


class Patches(NamedTuple):
    """Where the patches of a convolution lie, along one axis."""

    number: int  # of patches
    side: int  # pixels of the output in a patch; the last one may hold fewer
    output: int  # pixels
    window: int  # pixels of the input behind a patch
    start: int  # of the first window; negative where it begins outside of the input
    input: int  # pixels
    step: int  # 1; where a kernel of 1 x 1 passes over pixels, only every so many are looked at

    @classmethod
    def along(cls, size: int, kernel: int, r: int, stride: int, padding: str) -> Patches:
        """Those of a convolution over `size` pixels."""
        if padding == "SAME":
            output = -(-size // stride)
            before = max((output - 1) * stride + kernel - size, 0) // 2
        else:
            output, before = (size - kernel) // stride + 1, 0
        step = stride if kernel == 1 else 1
        window = r * stride // step
        start = 0 if kernel == 1 else (kernel - stride) // 2 - before
        return cls(-(-output // r), r, output, window, start, -(-size // step), step)

    @property
    def end(self) -> int:
        """Of the last window."""
        return self.start + self.number * self.window

    @property
    def real(self) -> np.ndarray:
        """(number,) pixels of the output in each patch."""
        return np.minimum(self.side, self.output - self.side * np.arange(self.number))


class Filter:
    """The gradients of one convolution, filtered.

    Args:
        x: shape of its inputs, (n, height, width, channels); all but n known.
        kernel: shape of its kernel.
        r: side of a patch in pixels of the output, which it fits into.
        strides: down and along, or one number for both.
        padding: "SAME" or "VALID".
        depthwise: whether each channel has kernels of its own.
    """

    def __init__(
        self,
        x: tf.TensorShape,
        kernel: tf.TensorShape,
        r: int,
        strides: int | Sequence[int] = 1,
        padding: str = "SAME",
        depthwise: bool = False,
    ) -> None:
        both = tuple(strides) if isinstance(strides, Sequence) else (strides, strides)
        self.kernel, self.channels, self.size = tuple(kernel), x[3], (x[1], x[2])
        self.depthwise, self.groups = depthwise, x[3] // (1 if depthwise else kernel[2])
        self.down, self.along = (
            Patches.along(size, side, r, stride, padding)
            for size, side, stride in zip(x[1:3], kernel[:2], both)
        )
        # a patch stands for as many pixels of the input, of which a kernel of 1 x 1 meets one
        self.density = 1.0 / (self.down.window * self.along.window / r**2)

    def sums(self, x: tf.Tensor) -> tf.Tensor:
        """(n, rows, columns, channels) sums of the inputs behind each patch: all that is kept."""
        down, along = self.down, self.along
        if down.step > 1 or along.step > 1:  # a slice of every other pixel takes ten times as long
            x = tf.nn.avg_pool2d(x, 1, (down.step, along.step), "VALID")
        x = x[:, max(down.start, 0) :, max(along.start, 0) :]
        x = _padded(x, [(max(-a.start, 0), max(a.end - a.input, 0)) for a in (down, along)])
        x = x[:, : down.number * down.window, : along.number * along.window]
        window = (down.window, along.window)
        pooled = tf.nn.avg_pool2d(x, window, window, "VALID")
        return pooled * (down.window * along.window * self.density)

    def means(self, upstream: tf.Tensor) -> tf.Tensor:
        """(n, rows, columns, outputs) means of the upstream gradient over each patch (Eq. 2)."""
        pads = [(0, axis.number * axis.side - axis.output) for axis in (self.down, self.along)]
        side = self.down.side
        pooled = tf.nn.avg_pool2d(_padded(upstream, pads), side, side, "VALID")
        real = np.outer(self.down.real, self.along.real)
        if (real == side**2).all():
            return pooled
        return pooled * tf.constant(side**2 / real[..., None], pooled.dtype)

    def of_kernel(self, sums: tf.Tensor, means: tf.Tensor) -> tf.Tensor:
        """The gradient by the kernel, equal at all of its places (Eq. 5)."""
        if self.groups == 1:
            flat = (tf.reshape(part, (-1, part.shape[3])) for part in (sums, means))
            found = tf.matmul(*flat, transpose_a=True)
        else:
            parts = (
                tf.reshape(p, (-1, self.groups, p.shape[3] // self.groups)) for p in (sums, means)
            )
            order = "pgi,pgo->gio" if self.depthwise else "pgi,pgo->igo"
            found = tf.reshape(tf.einsum(order, *parts), self.kernel[2:])
        return tf.broadcast_to(found, self.kernel)

    def of_input(self, means: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """The gradient by the inputs, equal in all of a patch's window (Eqs. 3, 20)."""
        total = tf.reduce_sum(kernel, [0, 1])
        if self.groups == 1:
            return self._spread(tf.einsum("nhwo,io->nhwi", means, total) * self.density)
        rows = (-1, means.shape[1], means.shape[2])
        means = tf.reshape(means, (*rows, self.groups, means.shape[3] // self.groups))
        if self.depthwise:
            found = tf.reduce_sum(means * tf.reshape(total, (self.groups, -1)), -1)
        else:
            total = tf.reshape(total, (self.kernel[2], self.groups, -1))
            found = tf.einsum("nhwgo,igo->nhwgi", means, total)
        return self._spread(tf.reshape(found, (*rows, self.channels)) * self.density)

    def _spread(self, found: tf.Tensor) -> tf.Tensor:
        """One number of each patch to all of its pixels of the input."""
        axes = down, along = self.down, self.along
        shape = (-1, down.number, 1, along.number, 1, self.channels)
        found = tf.tile(tf.reshape(found, shape), (1, 1, down.window, 1, along.window, 1))
        found = tf.reshape(
            found, (-1, down.number * down.window, along.number * along.window, self.channels)
        )
        found = found[:, max(-down.start, 0) :, max(-along.start, 0) :]
        found = _padded(found, [(max(a.start, 0), max(a.input - a.end, 0)) for a in axes])
        found = found[:, : down.input, : along.input]
        if down.step > 1 or along.step > 1:  # between the pixels that were looked at is nothing
            found = tf.reshape(found, (-1, down.input, 1, along.input, 1, self.channels))
            rest = [(0, axis.step - 1) for axis in axes]
            found = tf.pad(found, [(0, 0), (0, 0), rest[0], (0, 0), rest[1], (0, 0)])
            found = tf.reshape(
                found, (-1, down.input * down.step, along.input * along.step, self.channels)
            )[:, : self.size[0], : self.size[1]]
        return found


def _padded(x: tf.Tensor, pads: list[tuple[int, int]]) -> tf.Tensor:
    """Zeros around the pixels; TensorFlow copies the whole even for none."""
    return tf.pad(x, [(0, 0), *pads, (0, 0)]) if any(map(any, pads)) else x


def filterable(layer: Any, r: int) -> tf.Variable | None:
    """The kernel of a convolution whose outputs, of known size, patches of side r fit into."""
    kernel = kernel_of(layer)
    if kernel is None or type(layer) is L.Dense:
        return None
    sides = [shape[axis] or 1 for shape in stack.output_shapes(layer) for axis in (1, 2)]
    return kernel if min(sides, default=1) >= r else None


def filtering(layer: Any, r: int) -> AbstractContextManager[None]:
    """Lets a layer filter its gradients by patches of side r."""

    def operation(plain: Plain, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        padding, is_depthwise = layer.padding.upper(), type(layer) is L.DepthwiseConv2D
        made = Filter(x.shape, kernel.shape, r, layer.strides, padding, is_depthwise)
        return _convolved(plain, made, x, kernel)

    return replaced(layer, operation)


def _convolved(convolve: Plain, made: Filter, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
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


# What asks for the whole kernel beside the loss.
_RULES = [
    f"{of}_{rule}" for of in ("kernel", "depthwise") for rule in ("regularizer", "constraint")
]


def sliceable(layer: Any) -> tf.Variable | None:
    """The kernel of which channels can be trained alone; None where there is none."""
    kernel = kernel_of(layer)
    has_rule = any(getattr(layer, name, None) is not None for name in _RULES)
    if kernel is None or has_rule or kernel.shape[channel_axis(layer)] < 2:
        return None
    return kernel if type(layer) is not L.Conv2D or layer.groups == 1 else None


def channel_axis(layer: Any) -> int:
    """The axis of a kernel's channels."""
    return {L.Dense: 1, L.DepthwiseConv2D: 2}.get(type(layer), 3)


def sliced(layer: Any, some: Slice) -> AbstractContextManager[None]:
    """Lets a layer train some of its kernel's channels."""
    return replaced(layer, functools.partial(_multiplied, layer, some))


def _multiplied(
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

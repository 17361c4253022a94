"""Gradient filtering: convolution gradients from one number per patch and channel.

The upstream gradient is averaged over patches of r x r pixels. Each mean meets the sum of the
inputs behind its patch, so that neither gradient takes a convolution, and the forward pass hands
on one number per patch instead of its input.

Source: Yang, Li, Marculescu, Efficient On-device Training via Gradient Filtering, CVPR 2023,
Sec. 3, Eqs. 2 to 5, 20, 21. Where the stride s is above 1, which the paper leaves out, a patch
stands for r * s pixels of the input a side, and both gradients are divided by s * s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import arguments


class Patches(NamedTuple):
    """Where the patches of a convolution lie, along one axis.

    Attributes:
        number: of patches.
        side: pixels of the output in a patch; the last one may hold fewer.
        output: pixels of the output.
        window: pixels of the input behind a patch.
        start: of the first window; negative where it begins outside of the input.
        input: pixels of the input.
        step: 1; where a kernel of 1 x 1 passes over pixels, only every so many are looked at.
    """

    number: int
    side: int
    output: int
    window: int
    start: int
    input: int
    step: int

    @classmethod
    def along(cls, size: int, kernel: int, r: int, stride: int, padding: str) -> Patches:
        """Those of a convolution over `size` pixels."""
        if padding == "SAME":
            output = -(-size // stride)
            before = max((output - 1) * stride + kernel - size, 0) // 2
        else:
            output, before = (size - kernel) // stride + 1, 0
        if r > output:
            raise ValueError(
                "`r` must be a side of patches that fit into the output. Received: "
                f"r={r} for {output} pixels. Use at most {output}."
            )
        step = stride if kernel == 1 else 1
        window = r * stride // step
        start = 0 if kernel == 1 else (kernel - stride) // 2 - before
        return cls(-(-output // r), r, output, window, start, -(-size // step), step)

    @property
    def real(self) -> np.ndarray:
        """(count,) pixels of the output in each patch."""
        return np.minimum(self.side, self.output - self.side * np.arange(self.number))


class Filter:
    """The gradients of one convolution, filtered.

    Args:
        x: shape of its inputs, (n, height, width, channels).
        kernel: shape of its kernel.
        r: side of a patch in pixels of the output.
        strides: of the convolution: down and along, or one number for both.
        padding: "SAME" or "VALID".
        depthwise: whether each channel has kernels of its own.

    Raises:
        ValueError: an r that does not fit the output, or sizes that are not known.
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
        arguments.count("r", r)
        both = tuple(strides) if isinstance(strides, Sequence) else (strides, strides)
        for stride in both:
            arguments.count("strides", stride)
        arguments.choice("padding", padding, ("SAME", "VALID"))
        if x.rank != 4 or kernel.rank != 4 or None in (*x[1:], *kernel):
            raise ValueError(
                "A filtered convolution has two dimensions and inputs of known size. Received: "
                f"inputs of {x} and a kernel of {kernel}."
            )
        self.kernel, self.channels, self.size = tuple(kernel), x[3], (x[1], x[2])
        self.depthwise, self.groups = depthwise, 1 if depthwise else x[3] // kernel[2]
        self.outputs = kernel[3] * (x[3] if depthwise else 1)
        self.down, self.along = (
            Patches.along(size, side, r, stride, padding)
            for size, side, stride in zip(x[1:3], kernel[:2], both)
        )
        # a patch stands for as many pixels of the input, of which a kernel of 1 x 1 meets one
        self.density = 1.0 / (self.down.window * self.along.window / r**2)

    def sums(self, x: tf.Tensor) -> tf.Tensor:
        """(n, rows, columns, channels) sums of the inputs behind each patch.

        All that a filtered convolution keeps of its input.
        """
        down, along = self.down, self.along
        if down.step > 1 or along.step > 1:  # a slice of every other pixel takes ten times as long
            x = tf.nn.avg_pool2d(x, 1, (down.step, along.step), "VALID")
        pads = []
        for axis in (down, along):
            short = axis.start + axis.number * axis.window - axis.input
            pads.append((max(-axis.start, 0), max(short, 0)))
        x = x[:, max(down.start, 0) :, max(along.start, 0) :]
        x = _padded(x, pads)
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
        if self.depthwise:
            means = tf.reshape(means, (-1, self.channels, self.kernel[3]))
            found = tf.einsum("pi,pio->io", tf.reshape(sums, (-1, self.channels)), means)
        elif self.groups > 1:
            parts = (
                tf.reshape(p, (-1, self.groups, p.shape[3] // self.groups)) for p in (sums, means)
            )
            found = tf.reshape(tf.einsum("pgi,pgo->igo", *parts), self.kernel[2:])
        else:
            flat = (tf.reshape(part, (-1, part.shape[3])) for part in (sums, means))
            found = tf.matmul(*flat, transpose_a=True)
        return tf.broadcast_to(found, self.kernel)

    def of_input(self, means: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """The gradient by the inputs, equal in all of a patch's window (Eqs. 3, 20)."""
        total = tf.reduce_sum(kernel, [0, 1])
        if self.depthwise:
            means = tf.reshape(means, (*_rows(means), self.channels, self.kernel[3]))
            found = tf.reduce_sum(means * total, -1)
        elif self.groups > 1:
            means = tf.reshape(means, (*_rows(means), self.groups, self.outputs // self.groups))
            total = tf.reshape(total, (self.kernel[2], self.groups, -1))
            found = tf.einsum("nhwgo,igo->nhwgi", means, total)
            found = tf.reshape(found, (*_rows(found), self.channels))
        else:
            found = tf.einsum("nhwo,io->nhwi", means, total)
        return self._spread(found * self.density)

    def _spread(self, found: tf.Tensor) -> tf.Tensor:
        """One number of each patch to all of its pixels of the input."""
        down, along = self.down, self.along
        shape = (-1, down.number, 1, along.number, 1, self.channels)
        found = tf.tile(tf.reshape(found, shape), (1, 1, down.window, 1, along.window, 1))
        found = tf.reshape(
            found, (-1, down.number * down.window, along.number * along.window, self.channels)
        )
        found = found[:, max(-down.start, 0) :, max(-along.start, 0) :]
        pads = []
        for axis in (down, along):
            end = axis.start + axis.number * axis.window
            pads.append((max(axis.start, 0), max(axis.input - end, 0)))
        found = _padded(found, pads)[:, : down.input, : along.input]
        if down.step > 1 or along.step > 1:  # between the pixels that were looked at is nothing
            found = tf.reshape(found, (-1, down.input, 1, along.input, 1, self.channels))
            rest = [(0, axis.step - 1) for axis in (down, along)]
            found = tf.pad(found, [(0, 0), (0, 0), rest[0], (0, 0), rest[1], (0, 0)])
            found = tf.reshape(
                found, (-1, down.input * down.step, along.input * along.step, self.channels)
            )[:, : self.size[0], : self.size[1]]
        return found


def filtered_gradients(
    x: Any,
    kernel: Any,
    upstream: Any,
    r: int,
    strides: int | Sequence[int] = 1,
    padding: str = "SAME",
    depthwise: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Filtered gradients of a convolution by its inputs and by its kernel.

    Args:
        x: (n, height, width, channels) inputs of the convolution.
        kernel: (k, k, channels / groups, outputs), or depthwise (k, k, channels, multiplier).
        upstream: (n, height, width, outputs) gradient of the loss by the convolution's outputs.
        r: side of a patch in pixels of the output.
        strides: of the convolution: down and along, or one number for both.
        padding: "SAME" or "VALID".
        depthwise: whether each channel has kernels of its own.

    Returns:
        The gradients, of the shapes of `x` and `kernel`.

    Raises:
        ValueError: shapes that do not fit each other, or an r that does not fit the output.
    """
    x, kernel, upstream = (tf.convert_to_tensor(part) for part in (x, kernel, upstream))
    patches = Filter(x.shape, kernel.shape, r, strides, padding, depthwise)
    expected = (x.shape[0], patches.down.output, patches.along.output, patches.outputs)
    if upstream.shape != expected:
        raise ValueError(
            f"`upstream` must have the shape {expected} of the outputs. Received: "
            f"{tuple(upstream.shape)}, for x of {tuple(x.shape)}, a kernel of "
            f"{tuple(kernel.shape)}, strides {strides} and padding {padding}."
        )
    means = patches.means(upstream)
    return patches.of_input(means, kernel), patches.of_kernel(patches.sums(x), means)


def _padded(x: tf.Tensor, pads: list[tuple[int, int]]) -> tf.Tensor:
    """Zeros around the pixels; TensorFlow copies the whole even for none."""
    return tf.pad(x, [(0, 0), *pads, (0, 0)]) if any(map(any, pads)) else x


def _rows(part: tf.Tensor) -> tuple[int, int, int]:
    return -1, part.shape[1], part.shape[2]

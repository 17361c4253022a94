"""Ops of a model, with gradients that LiteRT's built-in ops can compute.

TensorFlow's own gradients of convolutions, poolings and activations are ops that LiteRT does not
have. Here each is written with convolutions, matrix products, pads and slices. A rule takes an op
of the traced model and its inputs, and returns its output in the graph that is being traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_ONES = [1, 1, 1, 1]
# Of a depthwise convolution whose kernel is computed: with more LiteRT 1.2 to 2.3 does not end.
_MOST_CHANNELS = 4832
_LARGE = 2.0**100  # a power of two: no product with it is rounded

# Ops that LiteRT has, and so are those of their gradients.
PLAIN = frozenset(
    "Add AddV2 BatchMatMulV2 BroadcastTo Cast ConcatV2 Const Einsum Exp ExpandDims Fill Identity "
    "MatMul Max Maximum Mean Minimum Mul Neg Pack Pad PadV2 RealDiv Reshape Rsqrt Sigmoid Softmax "
    "Sqrt Square SquaredDifference Squeeze StopGradient Sub Sum Tanh Tile Transpose".split()
)


class _Window:
    """Where the windows of a convolution or a pooling lie on its inputs."""

    def __init__(self, x: tf.Tensor, kernel: Sequence[int], op: tf.Operation) -> None:
        self.kernel, self.strides = tuple(kernel), tuple(op.get_attr("strides")[1:3])
        self.is_point = self.kernel == (1, 1)
        self.padding = op.get_attr("padding").decode()
        self._sizes, self._pads = x.shape[1:3], list[tuple[int, int]]()
        for size, side, stride in zip(self._sizes, kernel, self.strides):
            is_same = self.padding == "SAME"
            outputs = -(-(size if is_same else size - side + 1) // stride)
            short = (outputs - 1) * stride + side - size
            before = max(short, 0) // 2 if is_same else 0
            # zeros before and after; pixels that no window reaches count below 0
            self._pads.append((before, short - before))

    def padded(self, x: tf.Tensor, value: float = 0.0) -> tf.Tensor:
        """The inputs with a border, so that all windows lie inside."""
        pads = [(before, max(after, 0)) for before, after in self._pads]
        if any(map(any, pads)):
            x = tf.pad(x, [(0, 0), *pads, (0, 0)], constant_values=value)
        return x

    def tap(self, padded: tf.Tensor, at: tuple[int, int], like: tf.Tensor) -> tf.Tensor:
        """What each window has at one of its pixels, in the shape of the outputs."""
        (u, v), (down, right), (rows, columns) = at, self.strides, like.shape[1:3]
        ends = u + down * (rows - 1) + 1, v + right * (columns - 1) + 1
        if at == (0, 0) and padded.shape == like.shape and self.strides == (1, 1):
            return padded
        return padded[:, u : ends[0] : down, v : ends[1] : right]

    def on_inputs(self, y: tf.Tensor, at: tuple[int, int] | None = None) -> tf.Tensor:
        """Outputs where that pixel of their windows lies on the inputs, zeros between and around.

        Without a pixel with a border, for the flipped kernel to pass over.
        """
        y, pads, cuts = self._spread(y), [], []
        for axis, size in enumerate(self._sizes):
            more, offset = (self.kernel[axis] - 1, 0) if at is None else (0, at[axis])
            first = more - self._pads[axis][0] + offset
            last = size + more - first - y.shape[1 + axis]
            pads.append((max(first, 0), max(last, 0)))
            cuts.append((max(-first, 0), max(-last, 0)))
        if any(map(any, cuts)):
            (top, bottom), (left, right) = cuts
            y = y[:, top : y.shape[1] - bottom, left : y.shape[2] - right]
        return tf.pad(y, [(0, 0), *pads, (0, 0)]) if any(map(any, pads)) else y

    def _spread(self, y: tf.Tensor) -> tf.Tensor:
        """Outputs with zeros between, so that they lie as far apart as their windows."""
        n, rows, columns, channels = y.shape
        down, right = self.strides
        if self.strides == (1, 1):
            return y
        if right > 1:
            y = tf.reshape(y, [n * rows, columns, 1, channels])
            y = tf.pad(y, [(0, 0), (0, 0), (0, right - 1), (0, 0)])
        if down > 1:
            y = tf.reshape(y, [n, rows, 1, columns * right * channels])
            y = tf.pad(y, [(0, 0), (0, 0), (0, down - 1), (0, 0)])
        y = tf.reshape(y, [n, rows * down, columns * right, channels])
        return y[:, : (rows - 1) * down + 1, : (columns - 1) * right + 1]


def _flat(x: tf.Tensor) -> tf.Tensor:
    """(pixels of the batch, channels)"""
    return tf.reshape(x, [-1, x.shape[-1]])


def convolution(op: tf.Operation, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Conv2D of one group: gradients by matrix products, that of the inputs by a convolution."""
    window = _Window(x, kernel.shape[:2], op)

    @tf.custom_gradient
    def run(x: tf.Tensor, kernel: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            padded, flat = window.padded(x), _flat(upstream)
            parts = [
                tf.matmul(_flat(window.tap(padded, at, upstream)), flat, transpose_a=True)
                for at in np.ndindex(*window.kernel)
            ]
            of_kernel = tf.reshape(tf.stack(parts) if parts[1:] else parts[0], kernel.shape)
            if window.is_point:
                # as a batch of one: LiteRT has slow fully connected layers
                up = tf.reshape(upstream, [1, -1, kernel.shape[3]])
                of_pixels = tf.matmul(up, tf.reshape(kernel, kernel.shape[1:]), transpose_b=True)
                shape = [*upstream.shape[:3], kernel.shape[2]]
                of_input = window.on_inputs(tf.reshape(of_pixels, shape), (0, 0))
            else:
                flipped = tf.transpose(tf.reverse(kernel, [0, 1]), [0, 1, 3, 2])
                of_input = tf.nn.conv2d(window.on_inputs(upstream), flipped, 1, "VALID")
            return of_input, of_kernel

        if window.is_point and window.strides == (1, 1):
            y = tf.matmul(_flat(x), tf.reshape(kernel, kernel.shape[2:]))
            return tf.reshape(y, [*x.shape[:3], kernel.shape[3]]), gradient
        return tf.nn.conv2d(x, kernel, window.strides, window.padding), gradient

    return run(x, kernel)


def depthwise(op: tf.Operation, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """DepthwiseConv2dNative of one output per channel.

    The kernel's gradient is one too, of the inputs by the upstream gradient, with each image's
    channels apart: half the time of products and sums for each pixel of the kernel.
    """
    window = _Window(x, kernel.shape[:2], op)

    @tf.custom_gradient
    def run(x: tf.Tensor, kernel: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            around, flipped = window.on_inputs(upstream), tf.reverse(kernel, [0, 1])
            of_input = tf.nn.depthwise_conv2d(around, flipped, _ONES, "VALID")
            of_kernel = [
                part_of_kernel(*parts)
                for parts in zip(*map(_few_channels, (window.padded(x), upstream)))
            ]
            return of_input, sum(of_kernel[1:], of_kernel[0])

        def part_of_kernel(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
            found = tf.nn.depthwise_conv2d(
                _as_channels(x)[None],
                _as_channels(upstream)[..., None],
                _ONES,
                "VALID",
                dilations=window.strides,
            )[:, : kernel.shape[0], : kernel.shape[1]]
            found = tf.reshape(found, [*kernel.shape[:2], x.shape[0], kernel.shape[2]])
            return tf.reshape(tf.reduce_sum(found, 2), kernel.shape)

        return tf.nn.depthwise_conv2d(x, kernel, [1, *window.strides, 1], window.padding), gradient

    return run(x, kernel)


def _few_channels(x: tf.Tensor) -> list[tf.Tensor]:
    """The images in groups of so few channels together that LiteRT can take them as one image's."""
    most = max(_MOST_CHANNELS // x.shape[3], 1)
    return [x[k : k + most] for k in range(0, x.shape[0], most)] if most < x.shape[0] else [x]


def _as_channels(x: tf.Tensor) -> tf.Tensor:
    """(height, width, channels of all images)"""
    n, height, width, channels = x.shape
    return tf.reshape(tf.transpose(x, [1, 2, 0, 3]), [height, width, n * channels])


def max_pool(op: tf.Operation, x: tf.Tensor) -> tf.Tensor:
    """MaxPool: of equal values the first one in a window gets the gradient, as in TensorFlow."""
    sides = op.get_attr("ksize")[1:3]
    window = _Window(x, sides, op)

    @tf.custom_gradient
    def run(x: tf.Tensor) -> Any:
        y = tf.nn.max_pool2d(x, sides, window.strides, window.padding)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            padded = window.padded(x, -np.inf)
            left, parts = tf.ones_like(upstream), list[tf.Tensor]()
            for at in np.ndindex(*window.kernel):
                is_most = tf.equal(window.tap(padded, at, upstream), y)
                here = left * tf.cast(is_most, tf.float32)
                left -= here
                parts.append(window.on_inputs(here * upstream, at))
            return sum(parts[1:], parts[0])

        return y, gradient

    return run(x)


def normalisation(op: tf.Operation, x: tf.Tensor, *parameters: tf.Tensor) -> tf.Tensor:
    """FusedBatchNormV3: on stored statistics a scale and an offset."""
    gamma, beta, mean, variance = parameters
    if op.get_attr("is_training"):  # as Keras's layer normalisation runs it
        is_first = op.get_attr("data_format") == b"NCHW"
        mean, variance = tf.nn.moments(x, [0, 2, 3] if is_first else [0, 1, 2], keepdims=True)
        if is_first:
            gamma, beta = (tf.reshape(part, [1, -1, 1, 1]) for part in (gamma, beta))
    scale = gamma * tf.math.rsqrt(variance + op.get_attr("epsilon"))
    return x * scale + (beta - mean * scale)


def normalised_convolution(op: tf.Operation, known: Mapping[Any, tf.Tensor]) -> tf.Tensor | None:
    """A normalisation right after a convolution, as one convolution by a scaled kernel.

    The gradients of gamma and of the kernel both follow from that of the scaled kernel, so the
    convolution's outputs are neither kept nor passed over again. None for any other op, and where
    the kernel is larger than those outputs, or a constant, which LiteRT prepares once. `known` is
    what tensors of the model are in the graph that is being traced, by reference.
    """
    if op.type != "FusedBatchNormV3" or op.get_attr("is_training"):
        return None
    offset, before = 0.0, op.inputs[0].op
    gamma, beta, mean, variance = (known[tensor.ref()] for tensor in op.inputs[1:])
    if before.type == "BiasAdd" and before.inputs[1].ref() in known:
        offset, before = known[before.inputs[1].ref()], before.inputs[0].op
    is_alone = len(before.outputs) == 1 and len(before.outputs[0].consumers()) == 1
    is_known = all(tensor.ref() in known for tensor in before.inputs)
    if before.type not in ("Conv2D", "DepthwiseConv2dNative") or not (is_alone and is_known):
        return None
    x, kernel = (known[tensor.ref()] for tensor in before.inputs)
    if kernel.op.type == "Const" or np.prod(kernel.shape) > np.prod(op.inputs[0].shape):
        return None
    scale = gamma * tf.math.rsqrt(variance + op.get_attr("epsilon"))
    of_kernel = scale if before.type == "Conv2D" else tf.reshape(scale, [-1, 1])
    y = RULES[before.type](before, x, kernel * of_kernel)
    return y + (beta + (offset - mean) * scale)


def relu(op: tf.Operation, x: tf.Tensor) -> tf.Tensor:
    """Relu and Relu6: the gradient passes where the output is between the bounds."""
    is_six = op.type == "Relu6"

    @tf.custom_gradient
    def run(x: tf.Tensor) -> Any:
        y = tf.nn.relu6(x) if is_six else tf.nn.relu(x)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # 1 between the bounds, else 0: in floats, for comparisons are slow in LiteRT
            inside = y * (6.0 * _LARGE - y * _LARGE) if is_six else y * _LARGE
            return upstream * tf.minimum(inside, 1.0)

        return y, gradient

    return run(x)


def erf(op: tf.Operation, x: tf.Tensor) -> tf.Tensor:
    """The error function, off by 1.5e-7 at most.

    Source: Abramowitz & Stegun, Handbook of Mathematical Functions, 1964, Eq. 7.1.26.
    """

    @tf.custom_gradient
    def run(x: tf.Tensor) -> Any:
        size, bell = tf.abs(x), tf.exp(-x * x)
        t = 1.0 / (1.0 + 0.3275911 * size)
        series = t * (
            0.254829592
            + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
        )
        return tf.sign(x) * (1.0 - series * bell), lambda up: up * bell * (2.0 / np.sqrt(np.pi))

    return run(x)


def part(op: tf.Operation, x: tf.Tensor, *bounds: tf.Tensor) -> tf.Tensor:
    """StridedSlice: the gradient of what passes over no element is a pad."""
    begin, end, strides = map(tf.get_static_value, bounds)
    names = "begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"
    masks = {name: op.get_attr(name) for name in names}

    def cut(x: Any) -> tf.Tensor:
        return tf.strided_slice(x, begin, end, strides, **masks)

    with tf.init_scope():  # the numbers of the elements that are taken
        taken = cut(np.arange(x.shape.num_elements()).reshape(x.shape)).numpy().reshape(-1)
    first, last = (np.array(np.unravel_index(taken[k], x.shape)) for k in (0, -1))
    sides = last - first + 1
    if (strides < 0).any() or np.prod(sides) != taken.size:
        return cut(x)
    return tf.reshape(tf.slice(x, first, sides), op.outputs[0].shape)


_IMAGES = ("Conv2D", "DepthwiseConv2dNative", "MaxPool")
RULES: dict[str, Callable[..., Any]] = {
    "BiasAdd": lambda op, x, bias: x + bias,
    "Conv2D": convolution,
    "DepthwiseConv2dNative": depthwise,
    "Erf": erf,
    "Erfc": lambda op, x: 1.0 - erf(op, x),
    "FusedBatchNormV3": normalisation,
    # behind which a function with a gradient of its own ends
    "IdentityN": lambda op, *inputs: [tf.identity(tensor) for tensor in inputs],
    "MaxPool": max_pool,
    # with a small whole exponent
    "Pow": lambda op, x, y: functools.reduce(tf.multiply, [x] * int(tf.get_static_value(y))),
    "Relu": relu,
    "Relu6": relu,
    "StridedSlice": part,
}


def refusal(op: tf.Operation) -> str:
    """Why an op cannot be written; empty if it can."""
    if op.type not in RULES and op.type not in PLAIN:
        return "which has no rule"
    attributes = op.node_def.attr
    if op.type == "Pow" and tf.get_static_value(op.inputs[1]) not in range(1, 9):
        return "whose exponent is no small whole number"
    if op.type in _IMAGES and op.get_attr("data_format") == b"NCHW":
        return "with channels first"
    if "dilations" in attributes and set(op.get_attr("dilations")) != {1}:
        return "with dilation"
    if op.type == "Conv2D" and op.inputs[0].shape[-1] != op.inputs[1].shape[2]:
        return "with groups"
    if op.type == "DepthwiseConv2dNative" and op.inputs[1].shape[3] != 1:
        return "with several outputs per channel"
    if "padding" in attributes and op.get_attr("padding") not in (b"SAME", b"VALID"):
        return "with explicit padding"
    shapes = (tensor.shape for tensor in op.inputs if tensor.dtype != tf.resource)
    if not all(shape.is_fully_defined() for shape in shapes):
        return "of sizes that are not fixed"
    return ""

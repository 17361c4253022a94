"""Floating point operations of one op, from the shapes of what it takes and gives.

One multiply-add is 2 operations. A function of one number (exp, tanh, square root) is 1, whatever
it takes inside; so is a comparison that picks a maximum. Moving data, integers and random numbers
are 0. Convolutions count their whole kernel at the border too, as is usual.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

Rule = Callable[[tf.Operation], int]


def count(op: tf.Operation) -> int | None:
    """Operations of one run of `op`; None where there is no rule or a shape is not known."""
    if op.type in _MOVES:
        return 0
    results = op.outputs or op.inputs  # an op that writes gives nothing
    if op.type in _BODIES or any(tensor.dtype.is_complex for tensor in results):
        return None
    if not any(tensor.dtype.is_floating for tensor in results):
        return 0
    rule = _RULES.get(op.type)
    try:
        if op.type in _PER_RESULT:
            return _PER_RESULT[op.type] * _size(op.outputs[0])
        if op.type in _PER_INPUT:
            inputs = [tensor for tensor in op.inputs if tensor.dtype.is_floating]
            return _PER_INPUT[op.type] * max(_size(tensor) for tensor in inputs)
        return None if rule is None else rule(op)
    except _UnknownShape:
        return None


class _UnknownShape(Exception):
    """A shape is known only while the op runs."""


def _lengths(tensor: tf.Tensor) -> list[int]:
    """The shape of a tensor."""
    if not tensor.shape.is_fully_defined():
        raise _UnknownShape
    return tensor.shape.as_list()


def _size(tensor: tf.Tensor) -> int:
    """Numbers in a tensor."""
    return math.prod(_lengths(tensor))


def _convolution(at: int, kernel: Callable[[tf.Operation], tf.Tensor], last: int) -> Rule:
    """Every number of the result, or of its gradient, meets the kernel of one output channel.

    Args:
        at: input that is the gradient of the result; -1: the result itself.
        kernel: the filter, or its gradient.
        last: dimensions at its end that are output channels.
    """

    def rule(op: tf.Operation) -> int:
        result = op.outputs[0] if at < 0 else op.inputs[at]
        return 2 * _size(result) * math.prod(_lengths(kernel(op))[:-last])

    return rule


def _filter(op: tf.Operation) -> tf.Tensor:
    return op.inputs[1]


def _filter_gradient(op: tf.Operation) -> tf.Tensor:
    return op.outputs[0]


def _matmul(op: tf.Operation) -> int:
    flag = "transpose_a" if op.type == "MatMul" else "adj_x"
    summed = _lengths(op.inputs[0])[-2 if op.get_attr(flag) else -1]
    return 2 * _size(op.outputs[0]) * summed


def _einsum(op: tf.Operation) -> int:
    """All labels' lengths multiplied; 2 operations where something is summed over."""
    terms, _, result = op.get_attr("equation").decode().replace(" ", "").partition("->")
    lengths: dict[str, int] = {}
    for term, tensor in zip(terms.split(","), op.inputs):
        named, ellipsis, rest = term.partition("...")
        shape = _lengths(tensor)
        split = len(shape) - len(rest)
        lengths.update(zip(named + rest, shape[: len(named)] + shape[split:]))
        if ellipsis:
            between = math.prod(shape[len(named) : split])
            lengths["..."] = max(lengths.get("...", 1), between)
    summed = any(label not in result for label in lengths)
    return math.prod(lengths.values()) * (summed + (len(op.inputs) > 1))


def _pooling(op: tf.Operation) -> int:
    """Every result is made of one window, or every gradient goes back into one."""
    pooled = op.outputs[0] if op.type in ("AvgPool", "MaxPool") else op.inputs[-1]
    return _size(pooled) * math.prod(op.get_attr("ksize"))


def _batch_normalisation(op: tf.Operation) -> int:
    """Scale and shift; with the batch's statistics their sums too.

    Mean 1, variance 3, normalise 2, scale and shift 2; with stored statistics 2 in all.
    """
    return (8 if op.get_attr("is_training") else 2) * _size(op.inputs[0])


def _batch_normalisation_gradient(op: tf.Operation) -> int:
    """Gradients of beta 1, gamma 4 (normalise 2, multiply-add 2), and x 1, or 4 of a batch."""
    return (9 if op.get_attr("is_training") else 6) * _size(op.inputs[0])


def _sum_of_many(op: tf.Operation) -> int:
    return (len(op.inputs) - 1) * _size(op.outputs[0])


_RULES: dict[str, Rule] = {
    **dict.fromkeys(("Conv2D", "Conv3D"), _convolution(-1, _filter, 1)),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _convolution(2, _filter, 1)),
    **dict.fromkeys(
        ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), _convolution(2, _filter_gradient, 1)
    ),
    # a filter of shape (height, width, channels, results per channel)
    "DepthwiseConv2dNative": _convolution(-1, _filter, 2),
    "DepthwiseConv2dNativeBackpropInput": _convolution(2, _filter, 2),
    "DepthwiseConv2dNativeBackpropFilter": _convolution(2, _filter_gradient, 2),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    "Einsum": _einsum,
    **dict.fromkeys(("AvgPool", "MaxPool", "AvgPoolGrad", "MaxPoolGrad"), _pooling),
    "FusedBatchNormV3": _batch_normalisation,
    "FusedBatchNormGradV3": _batch_normalisation_gradient,
    "AddN": _sum_of_many,
}

# Operations for each number of the result.
_PER_RESULT = {
    **dict.fromkeys(
        (
            *("Add", "AddV2", "Sub", "Mul", "MulNoNan", "Div", "RealDiv", "DivNoNan", "BiasAdd"),
            *("Xdivy", "Xlogy", "FloorDiv", "FloorMod", "Pow", "Maximum", "Minimum", "Neg", "Abs"),
            *("Sign", "Floor", "Ceil", "Round", "Rint", "Square", "Sqrt", "Rsqrt", "Reciprocal"),
            *("Inv", "Exp", "Expm1", "Log", "Log1p", "Sin", "Cos", "Tanh", "Sigmoid", "Erf"),
            *("Erfc", "Relu", "Relu6", "Elu", "Selu", "LeakyRelu", "Softplus", "Softsign"),
            *("ReluGrad", "Relu6Grad", "LeakyReluGrad", "Cumsum"),
        ),
        1,
    ),
    **dict.fromkeys(("SquaredDifference", "EluGrad", "SeluGrad", "ClipByValue"), 2),
    # dy * y * (1 - y) and its like
    **dict.fromkeys(("SigmoidGrad", "TanhGrad", "RsqrtGrad", "SqrtGrad", "ReciprocalGrad"), 3),
    **dict.fromkeys(("SoftplusGrad", "SoftsignGrad"), 3),
    # maximum, difference, exp, sum, quotient (or difference of the logarithm)
    **dict.fromkeys(("Softmax", "LogSoftmax"), 5),
}

# Operations for each number of the largest input.
_PER_INPUT = {
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod", "BiasAddGrad"), 1),
    **dict.fromkeys(("UnsortedSegmentSum", "SegmentSum"), 1),
    **dict.fromkeys(("AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatterAdd"), 1),
    "L2Loss": 2,
    # softmax 5, loss 2 (multiply-add), gradient 1
    **dict.fromkeys(("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), 8),
    # updates of one weight: var -= rate * g
    "ResourceApplyGradientDescent": 2,
    # v = momentum * v - rate * g; var += v
    **dict.fromkeys(("ResourceApplyMomentum", "ResourceApplyKerasMomentum"), 4),
    # m += (1 - b1) (g - m): 3; v += (1 - b2) (g * g - v): 4; var -= rate * m / (sqrt(v) + eps): 5
    "ResourceApplyAdam": 12,
}

# How often their functions run is known only while they run.
_BODIES = frozenset(
    {"Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While", "XlaLaunch"}
)

_MOVES = frozenset(
    (
        *("AssignVariableOp", "BatchToSpaceND", "Bitcast", "BroadcastTo", "Cast", "CheckNumerics"),
        *("Assert", "Concat", "ConcatV2", "Const", "DepthToSpace", "DynamicPartition"),
        *("DynamicStitch", "EnsureShape", "ExpandDims", "Fill", "Gather", "GatherNd", "GatherV2"),
        *("Identity", "IdentityN", "InvertPermutation", "MirrorPad", "NoOp", "OneHot", "OnesLike"),
        *("Pack", "Pad", "PadV2", "Placeholder", "PlaceholderWithDefault", "PreventGradient"),
        *("Print", "PrintV2", "RandomStandardNormal", "RandomUniform", "ReadVariableOp"),
        *("Reshape", "ResizeNearestNeighbor", "ResourceGather", "ResourceGatherNd", "Reverse"),
        *("ReverseV2", "Roll", "ScatterNd", "Select", "SelectV2", "Slice", "Snapshot"),
        *("SpaceToBatchND", "SpaceToDepth", "Split", "SplitV", "Squeeze", "StatelessRandomNormal"),
        *("StatelessRandomNormalV2", "StatelessRandomUniform", "StatelessRandomUniformV2"),
        *(
            "StatelessTruncatedNormalV2",
            "StopGradient",
            "StridedSlice",
            "StridedSliceGrad",
            "TensorScatterUpdate",
        ),
        *("Tile", "Transpose", "TruncatedNormal", "Unpack", "Where", "ZerosLike", "_Retval"),
        *("Range", "LinSpace", "Shape", "ShapeN", "Size", "Rank"),
    )
)

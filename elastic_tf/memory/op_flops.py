"""Floating point operations of one op, from the shapes of what it takes and gives.

One multiply-add is 2 operations. A function of one number (exp, tanh, square root) is 1, whatever
it takes inside; so is a comparison that picks a maximum. Convolutions count their whole kernel at
the border too, as is usual. Any op that is not named here counts as 0: it moves data, draws random
numbers, calculates with integers, or is rare in networks (decompositions, Fourier transforms).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf


def count(op: tf.Operation) -> int | None:
    """Operations of one run of `op`; None where they are known only while it runs."""
    if op.type in _BODIES:
        return None
    floats = [tensor for tensor in (*op.inputs, *op.outputs) if tensor.dtype.is_floating]
    if not floats:
        return 0
    try:
        if op.type in _RULES:
            return _RULES[op.type](op)
        each = _PER_NUMBER.get(op.type, 0)
        return each and each * max(_size(tensor) for tensor in floats)
    except _UnknownShape:
        return None


class _UnknownShape(Exception):
    """A shape is known only while the op runs."""


def _lengths(tensor: tf.Tensor) -> list[int]:
    if not tensor.shape.is_fully_defined():
        raise _UnknownShape
    return tensor.shape.as_list()


def _size(tensor: tf.Tensor) -> int:
    return math.prod(_lengths(tensor))


def _convolution(op: tf.Operation) -> int:
    """Every number of the result, or of its gradient, meets the kernel of one output channel."""
    result = op.inputs[2] if "Backprop" in op.type else op.outputs[0]
    kernel = op.outputs[0] if "BackpropFilter" in op.type else op.inputs[1]
    # a depthwise filter has shape (height, width, channels, results per channel)
    of_output = 2 if op.type.startswith("Depthwise") else 1
    return 2 * _size(result) * math.prod(_lengths(kernel)[:-of_output])


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
    pooled = op.inputs[-1] if op.type.endswith("Grad") else op.outputs[0]
    return _size(pooled) * math.prod(op.get_attr("ksize"))


def _normalisation(op: tf.Operation) -> int:
    """Scale and shift 2, with the batch's statistics mean 1, variance 3 and normalise 2 as well.

    Gradients: of beta 1, of gamma 4 (normalise 2, multiply-add 2), of x 1, or 4 of a batch.
    """
    stored, of_batch = (6, 9) if "Grad" in op.type else (2, 8)
    return (of_batch if op.get_attr("is_training") else stored) * _size(op.inputs[0])


_RULES: dict[str, Callable[[tf.Operation], int]] = {
    name: rule
    for rule, names in {
        _convolution: "Conv2D Conv2DBackpropInput Conv2DBackpropFilter Conv3D "
        "Conv3DBackpropInputV2 Conv3DBackpropFilterV2 DepthwiseConv2dNative "
        "DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter",
        _matmul: "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3",
        _einsum: "Einsum",
        _pooling: "AvgPool MaxPool AvgPoolGrad MaxPoolGrad",
        _normalisation: "FusedBatchNormV3 FusedBatchNormGradV3",
        lambda op: (len(op.inputs) - 1) * _size(op.outputs[0]): "AddN",
    }.items()
    for name in names.split()
}

# Operations for each number of the largest input or result.
_PER_NUMBER = {
    name: operations
    for operations, names in {
        1: "Add AddV2 Sub Mul MulNoNan Div RealDiv DivNoNan BiasAdd Xdivy Xlogy FloorDiv FloorMod "
        "Pow Maximum Minimum Neg Abs Sign Floor Ceil Round Rint Square Sqrt Rsqrt Reciprocal Inv "
        "Exp Expm1 Log Log1p Sin Cos Tanh Sigmoid Erf Erfc Relu Relu6 Elu Selu LeakyRelu Softplus "
        "Softsign ReluGrad Relu6Grad LeakyReluGrad Cumsum Sum Mean Max Min Prod BiasAddGrad "
        "UnsortedSegmentSum SegmentSum ResourceScatterAdd ResourceScatterSub AssignAddVariableOp "
        "AssignSubVariableOp",
        # of one weight: var -= rate * g
        2: "SquaredDifference EluGrad SeluGrad ClipByValue L2Loss ResourceApplyGradientDescent",
        # dy * y * (1 - y) and its like
        3: "SigmoidGrad TanhGrad RsqrtGrad SqrtGrad ReciprocalGrad SoftplusGrad SoftsignGrad",
        # v = momentum * v - rate * g; var += v
        4: "ResourceApplyMomentum ResourceApplyKerasMomentum",
        # maximum, difference, exp, sum, quotient (or difference of the logarithm)
        5: "Softmax LogSoftmax",
        # softmax 5, loss 2 (multiply-add), gradient 1
        8: "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits",
        # m += (1 - b1) (g - m): 3; v += (1 - b2) (g * g - v): 4; var -= rate * m / (sqrt(v) + eps)
        12: "ResourceApplyAdam",
    }.items()
    for name in names.split()
}

# How often their functions run is known only while they run.
_BODIES = frozenset(
    {"Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While", "XlaLaunch"}
)

"""The ops of a traced function: what each takes, gives, waits for and calculates.

A function that is called stands there with its ops. What runs in a loop is left out, and what is in
the branches of a condition, as new roots of Shampoo.

One multiply-add is 2 floating point operations. A function of one number (exp, tanh, square root)
is 1, whatever it takes inside; so is a comparison that picks a maximum. Convolutions count their
whole kernel at the border too, as is usual. Any op that is not named here counts as 0: it moves
data, draws random numbers, calculates with integers, or is rare in networks (decompositions,
Fourier transforms).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.graph import SHAPES, Node, needed_by

Key = tuple[str, int]  # an op and the number of its output

# cuDNN's scratch memory, an output of unknown shape; empty on CPUs.
SCRATCH = ("FusedBatchNormV3", 5)
_NO_SIZE = (tf.resource, tf.string, tf.variant)
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_BRANCHES = frozenset({"If", "StatelessIf"})
# What a core does in a microsecond; only ratios matter, and these little.
_FLOPS, _BYTES, _START = 20e3, 8e3, 2.0


def graph_flops(graph: Any) -> int:
    """Floating point operations of one run of a FuncGraph, as of `StepFunction.graph`.

    Ops from which neither its results nor a variable gets anything are left out; so is what runs in
    a loop: how often is known only while it runs. Fusing ops, as TensorFlow does later, does not
    change the sum.
    """
    works, results = inlined(graph)
    ends = [name for name, _ in results] + [op.name for op in graph.control_outputs]
    needed = needed_by(nodes(works), ends, follow_controls=True)
    return sum(work.flops for name, work in works.items() if name in needed)


@dataclass
class Work:
    """One op."""

    name: str  #: unique in the function
    type: str  #: of the op
    inputs: tuple[Key, ...]  #: what it takes
    sizes: tuple[int, ...] = ()  #: bytes of what it gives; -1 where only a run tells
    controls: tuple[str, ...] = ()  #: ops that it waits for
    microseconds: float = 0.0  #: a guess
    written: int = 0  #: bytes of the variable that it writes; -1 where it draws random numbers
    taken: int = 0  #: bytes of what it takes
    flops: int = 0  #: floating point operations; 0 where only a run tells


def nodes(works: Mapping[str, Work]) -> dict[str, Node]:
    """Ops as a graph."""
    return {
        work.name: Node(work.type, tuple(name for name, _ in work.inputs), controls=work.controls)
        for work in works.values()
    }


def microseconds(flops: float, moved: float) -> float:
    """A guess of the time of an op, from its operations and the bytes that it reads and writes."""
    return _START + flops / _FLOPS + moved / _BYTES


def inlined(graph: Any) -> tuple[dict[str, Work], list[Key]]:
    """The ops of a FuncGraph and of the functions that it calls, by name, and what it gives."""
    works: dict[str, Work] = {}

    def add(graph: Any, functions: Any, prefix: str, given: Sequence[Key]) -> list[Key]:
        same = {tensor.name: key for tensor, key in zip(graph.inputs, given)}

        def source(tensor: tf.Tensor) -> Key:
            return same.get(tensor.name, (prefix + tensor.op.name, tensor.value_index))

        for op in graph.get_operations():
            if op.outputs and op.outputs[0].name in same:
                continue  # an argument
            name, inputs = prefix + op.name, tuple(source(tensor) for tensor in op.inputs)
            controls = tuple(prefix + other.name for other in op.control_inputs)
            names = (tensor.name for tensor in op.outputs)
            if op.type == "IdentityN":  # TensorFlow splits it
                same.update(zip(names, inputs))
                works[name] = Work(name, "NoOp", (), (), controls)
            elif op.type in _CALLS:
                called = functions._get_function(op.get_attr("f").name)
                body = _shaped(called, op.inputs)
                same.update(zip(names, add(body, called.graph, f"{name}/", inputs)))
                lasting = tuple(f"{name}/{other.name}" for other in body.control_outputs)
                works[name] = Work(name, "NoOp", (), (), controls + lasting)
            else:
                works[name] = _work(op, name, inputs, controls)
                if op.type in _BRANCHES:  # as large, whichever is taken
                    branch = functions._get_function(op.get_attr("else_branch").name)
                    found = _shaped(branch, op.inputs[1:]).outputs
                    works[name].sizes = tuple(map(_size, found))
                elif op.type == "Identity" and inputs[0][0] in works:
                    works[name].sizes = (works[inputs[0][0]].sizes[inputs[0][1]],)
        return [source(tensor) for tensor in graph.outputs]

    return works, add(graph, graph, "", ())


def _shaped(function: Any, given: Sequence[tf.Tensor]) -> Any:
    """The graph of a function, with the shapes of what it is given."""
    if all(tensor.shape.is_fully_defined() for tensor in function.graph.inputs):
        return function.graph
    definition = copy.deepcopy(function.definition)
    definition.arg_attr.clear()  # the shapes that it was traced with
    return stack.function_def_to_graph(definition, input_shapes=[one.shape for one in given])


def _work(op: Any, name: str, inputs: tuple[Key, ...], controls: tuple[str, ...]) -> Work:
    if op.type in SHAPES:
        return Work(name, op.type, (), tuple(4 * max(t.shape.rank or 1, 1) for t in op.outputs))
    sizes = tuple(_size(tensor) for tensor in op.outputs)
    if op.type == "SplitV" and min(sizes) < 0:  # its cuts move, what the parts add up to does not
        whole, unknown = _size(op.inputs[0]), sizes.count(-1)
        rest = whole - sum(size for size in sizes if size > 0)
        sizes = tuple(rest // unknown if size < 0 <= whole else size for size in sizes)
    given = [tensor for tensor in op.inputs if tensor.dtype != tf.resource]
    taken = sum(_size(tensor) for tensor in given)
    is_handle = bool(op.inputs) and op.inputs[0].dtype == tf.resource
    written = 0
    if op.op_def.is_stateful and not is_handle and op.type != "Placeholder":
        written = -1  # draws random numbers
    elif is_handle and not op.outputs and given:
        written = max(_size(tensor) for tensor in given)
    held = len(op.inputs) - len(given)  # variables that are read and written
    flops = op_flops(op)
    moved = taken + sum(sizes) + 2 * held * max(written, 0)
    cost = 0.0 if op.type == "ReadVariableOp" else microseconds(flops, moved)
    return Work(name, op.type, inputs, sizes, controls, cost, written, taken, flops)


def _size(tensor: tf.Tensor) -> int:
    """Bytes; -1 where only a run tells."""
    if tensor.dtype in _NO_SIZE or (tensor.op.type, tensor.value_index) == SCRATCH:
        return 0
    found = tensor_bytes(tensor)
    return -1 if found is None else found


def tensor_bytes(tensor: Any) -> int | None:
    """Bytes of a tensor or a TensorSpec; None if only a run tells."""
    count = tensor.shape.num_elements()
    has_size = count is not None and tensor.dtype not in _NO_SIZE
    return count * tensor.dtype.size if has_size else None


def op_flops(op: tf.Operation) -> int:
    """Floating point operations of one run of an op; 0 where they are known only while it runs."""
    rule = _OPERATIONS.get(op.type, 0)
    floats = [tensor for tensor in (*op.inputs, *op.outputs) if tensor.dtype.is_floating]
    if not floats or not rule:
        return 0
    try:
        return rule(op) if callable(rule) else rule * max(_count(tensor) for tensor in floats)
    except ValueError:
        return 0


def _lengths(tensor: tf.Tensor) -> list[int]:
    tensor.shape.assert_is_fully_defined()
    return tensor.shape.as_list()


def _count(tensor: tf.Tensor) -> int:
    return math.prod(_lengths(tensor))


def _convolution(op: tf.Operation) -> int:
    """Every number of the result, or of its gradient, meets the kernel of one output channel."""
    result = op.inputs[2] if "Backprop" in op.type else op.outputs[0]
    kernel = op.outputs[0] if "BackpropFilter" in op.type else op.inputs[1]
    # a depthwise filter has shape (height, width, channels, results per channel)
    of_output = 2 if op.type.startswith("Depthwise") else 1
    return 2 * _count(result) * math.prod(_lengths(kernel)[:-of_output])


def _matmul(op: tf.Operation) -> int:
    flag = "transpose_a" if op.type == "MatMul" else "adj_x"
    summed = _lengths(op.inputs[0])[-2 if op.get_attr(flag) else -1]
    return 2 * _count(op.outputs[0]) * summed


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
    return _count(pooled) * math.prod(op.get_attr("ksize"))


def _normalisation(op: tf.Operation) -> int:
    """Scale and shift 2, with the batch's statistics mean 1, variance 3 and normalise 2 as well.

    Gradients: of beta 1, of gamma 4 (normalise 2, multiply-add 2), of x 1, or 4 of a batch.
    """
    stored, of_batch = (6, 9) if "Grad" in op.type else (2, 8)
    return (of_batch if op.get_attr("is_training") else stored) * _count(op.inputs[0])


# By the type of an op; numbers are for each number of the largest input or result.
_RULES: dict[Callable[[Any], int] | int, str] = {
    _convolution: "Conv2D Conv2DBackpropInput Conv2DBackpropFilter Conv3D "
    "Conv3DBackpropInputV2 Conv3DBackpropFilterV2 DepthwiseConv2dNative "
    "DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter",
    _matmul: "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3",
    _einsum: "Einsum",
    _pooling: "AvgPool MaxPool AvgPoolGrad MaxPoolGrad",
    _normalisation: "FusedBatchNormV3 FusedBatchNormGradV3",
    lambda op: (len(op.inputs) - 1) * _count(op.outputs[0]): "AddN",
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
}
_OPERATIONS = {name: rule for rule, names in _RULES.items() for name in names.split()}

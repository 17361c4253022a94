"""The ops of a traced step: what each takes, gives, waits for and calculates.

A function that is called stands there with its ops. What runs in a loop is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from elastic_tf.graph import SHAPES, Node, needed_by
from elastic_tf.memory import op_flops
from elastic_tf.memory.activations import SCRATCH, tensor_bytes

Key = tuple[str, int]  # an op and the number of its output

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
# What a core does in a microsecond; only ratios matter, and these little.
_FLOPS, _BYTES, _START = 20e3, 8e3, 2.0


def graph_flops(graph: Any) -> int:
    """Floating point operations of one run of a FuncGraph; one multiply-add is 2.

    `StepFunction(model, mask).graph(data)` is the graph of a training step. Ops from which neither
    its results nor a variable gets anything are left out; so is what runs in a loop: how often is
    known only while it runs. Fusing ops, as TensorFlow does later, does not change the sum.
    """
    inlined = Inlined()
    ends = [name for name, _ in inlined.add(graph)] + [op.name for op in graph.control_outputs]
    needed = needed_by(nodes(inlined.works), ends, follow_controls=True)
    return sum(work.flops for work in inlined.works.values() if work.name in needed)


@dataclass
class Work:
    """One op.

    Attributes:
        name: unique in the step.
        type: of the op.
        inputs: what it takes.
        sizes: bytes of what it gives.
        controls: ops that it waits for.
        microseconds: a guess.
        written: bytes of the variable that it writes.
        taken: bytes of what it takes.
        flops: floating point operations; 0 where only a run tells.
    """

    name: str
    type: str
    inputs: tuple[Key, ...]
    sizes: tuple[int, ...] = ()
    controls: tuple[str, ...] = ()
    microseconds: float = 0.0
    written: int = 0
    taken: int = 0
    flops: int = 0


def nodes(works: Mapping[str, Work]) -> dict[str, Node]:
    """Ops as a graph."""
    return {
        work.name: Node(work.type, tuple(name for name, _ in work.inputs), controls=work.controls)
        for work in works.values()
    }


def microseconds(flops: float, moved: float) -> float:
    """A guess of the time of an op, from its operations and the bytes that it reads and writes."""
    return _START + flops / _FLOPS + moved / _BYTES


class Inlined:
    """The ops of a FuncGraph and of the functions that it calls."""

    def __init__(self) -> None:
        self.works: dict[str, Work] = {}

    def joined(self, names: Iterable[str]) -> set[str]:
        """These ops, and in the place of those that only wait what they wait for."""
        seen, left = set[str](), [*names]
        while left:
            work = self.works[left.pop()]
            if work.name not in seen:
                seen.add(work.name)
                left += work.controls if work.type == "NoOp" else ()
        return {name for name in seen if self.works[name].type != "NoOp"}

    def add(self, graph: Any, prefix: str = "", given: Sequence[Key] = ()) -> list[Key]:
        """Add the ops of a graph, given its inputs if it is called; returns what it gives."""
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
                self.works[name] = Work(name, "NoOp", (), (), controls)
            elif op.type in _CALLS:
                body = graph._get_function(op.get_attr("f").name).graph
                same.update(zip(names, self.add(body, f"{name}/", inputs)))
                lasting = tuple(f"{name}/{other.name}" for other in body.control_outputs)
                self.works[name] = Work(name, "NoOp", (), (), controls + lasting)
            else:
                self.works[name] = _work(op, name, inputs, controls)
        return [source(tensor) for tensor in graph.outputs]


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
    flops = op_flops.count(op) or 0
    moved = taken + sum(sizes) + 2 * held * max(written, 0)
    cost = 0.0 if op.type == "ReadVariableOp" else microseconds(flops, moved)
    return Work(name, op.type, inputs, sizes, controls, cost, written, taken, flops)


def _size(tensor: tf.Tensor) -> int:
    """Bytes; -1 where only a run tells."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string):
        return 0
    if (tensor.op.type, tensor.value_index) == SCRATCH:
        return 0
    found = tensor_bytes(tensor)
    return -1 if found is None else found

"""Walks over graphs of TensorFlow: what an op needs, what flows into it, what a graph captures.

A node is an op of a FuncGraph, or the name of one in the graph that TensorFlow executes. Sets of
tensors are Python integers with bit k standing for tensor k, so that the union of two is one `|`.
No name decides what something is.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf

from elastic_tf.stack import op_def_registry

N = TypeVar("N", bound=Hashable)

# Ops that only look at a variable; anything else counts as writing to it.
READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"})
# Ops whose results are the same whatever values they are given.
SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size"})


class Node(NamedTuple):
    """One op of a graph."""

    op: str  # its type
    inputs: tuple[Any, ...]  # the nodes whose outputs it takes
    ports: tuple[int, ...] = ()  # number of the output taken, for each input, if known
    controls: tuple[Any, ...] = ()  # nodes that it waits for without taking anything


def read_graph_def(graph_def: Any) -> dict[str, Node]:
    """The nodes of a GraphDef by name."""
    nodes = {}
    for node in graph_def.node:
        data = [name.partition(":") for name in node.input if not name.startswith("^")]
        nodes[node.name] = Node(
            node.op,
            inputs=tuple(name for name, _, _ in data),
            ports=tuple(int(port or 0) for _, _, port in data),
            controls=tuple(name[1:] for name in node.input if name.startswith("^")),
        )
    return nodes


def nodes_of(ops: Iterable[tf.Operation], starts: Collection[Any] = ()) -> dict[Any, Node]:
    """Ops of a FuncGraph as nodes; those in `starts`, by themselves or by type, take nothing."""
    nodes = {}
    for op in ops:
        kind = op.type
        inputs = () if kind in starts or op in starts else tuple(takes(op))
        nodes[op] = Node(kind, inputs, (), tuple(op.control_inputs))
    return nodes


def takes(op: tf.Operation) -> list[tf.Operation]:
    """The ops whose results an op takes."""
    return [tensor.op for tensor in op.inputs]


def users(op: tf.Operation) -> list[tf.Operation]:
    """The ops that take results of an op."""
    return [user for tensor in op.outputs for user in tensor.consumers()]


def reach(starts: Iterable[N], onward: Callable[[N], Iterable[N]]) -> set[N]:
    """Some nodes and all that are met by going on from them, as by `takes` or `users`."""
    found = set(starts)
    waiting = list(found)
    while waiting:
        after = set(onward(waiting.pop())) - found
        found |= after
        waiting += after
    return found


def needed_by(
    graph: Mapping[N, Node], roots: Mapping[N, int] | Iterable[N], *, follow_controls: bool = False
) -> dict[N, int]:
    """For each node, the union of the bit sets of the roots that cannot be computed without it.

    Nodes that no root needs are left out. The graph may have loops. Roots without sets count as
    one; with `follow_controls` what a node waits for is needed, too.
    """
    return _spread(
        {k: one.inputs + one.controls * follow_controls for k, one in graph.items()}, roots
    )


def reached_from(
    graph: Mapping[N, Node], roots: Mapping[N, int] | Iterable[N], *, follow_controls: bool = False
) -> dict[N, int]:
    """For each node, the set of roots that flow into it; the mirror image of `needed_by`."""
    after: dict[Any, list[N]] = {}
    for name, node in graph.items():
        for source in node.inputs + node.controls * follow_controls:
            after.setdefault(source, []).append(name)
    return _spread(after, roots)


def _spread(
    neighbours: Mapping[N, Iterable[N]], roots: Mapping[N, int] | Iterable[N]
) -> dict[N, int]:
    """Carry the bit sets along the edges until nothing changes."""
    sets = dict(roots) if isinstance(roots, Mapping) else dict.fromkeys(roots, 1)
    queue = deque(sets)
    waiting = set(queue)
    while queue:
        name = queue.popleft()
        waiting.discard(name)
        for neighbour in neighbours.get(name, ()):
            if sets[name] & ~sets.get(neighbour, 0):
                sets[neighbour] = sets[name] | sets.get(neighbour, 0)
                if neighbour not in waiting:
                    waiting.add(neighbour)
                    queue.append(neighbour)
    return sets


def members(bits: int) -> tuple[int, ...]:
    """Indices of the tensors in a bit set, ascending."""
    return tuple(k for k in range(bits.bit_length()) if bits >> k & 1)


def captured(graph: Any, variables: Iterable[tf.Variable]) -> dict[tf.Operation, int]:
    """The placeholders that stand for some variables inside a FuncGraph -> number of the variable.

    Variables that the graph does not capture are left out.
    """
    number = {id(variable.handle): k for k, variable in enumerate(variables)}
    return {inside.op: number[id(out)] for out, inside in graph.captures if id(out) in number}


def changing(graph: Mapping[N, Node]) -> list[N]:
    """Nodes that may give another result each time: of a state, or of a variable that is written.

    Keras 3 draws random numbers from a seed in a variable, which it moves on.
    """
    states = [name for name, node in graph.items() if has_state(node.op)]
    written = {graph[name].inputs[0] for name in states if graph[name].inputs}
    reads = (name for name, node in graph.items() if node.op in READS)
    return states + [name for name in reads if graph[name].inputs[0] in written]


@functools.cache
def has_state(kind: str) -> bool:
    """Whether an op of that type may give another result each time, or leave something behind."""
    known = op_def_registry.get(kind)
    return known is None or (known.is_stateful and kind not in READS | {"_Arg", "_Retval"})


def made(tensor: tf.Tensor, passing: Collection[str]) -> tf.Tensor:
    """What a tensor was before ops of these types passed it on."""
    while tensor.op.type in passing:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def replace(old: tf.Tensor, new: tf.Tensor, users: Collection[tf.Operation]) -> None:
    """Let some of the ops that take a tensor take another one."""
    for user in old.consumers():
        if user in users:
            for place, taken in enumerate(user.inputs):
                if taken is old:
                    user._update_input(place, new)

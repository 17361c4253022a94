"""Data flow of a traced training step: what each op is needed for.

Nothing here looks at a name to decide what something is. Sets of tensors are Python integers
with bit k standing for tensor k, so that the union of two sets is one `|`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Node(NamedTuple):
    """One op of an executed graph."""

    op: str  # its type
    inputs: tuple[str, ...]  # names of the nodes whose outputs it takes
    ports: tuple[int, ...] = ()  # number of the output taken, for each input
    controls: tuple[str, ...] = ()  # nodes that it waits for without taking anything


Graph = Mapping[str, Node]


def read_graph_def(graph_def: Any) -> dict[str, Node]:
    """Nodes of a GraphDef by name."""
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


def needed_by(
    graph: Graph, roots: Mapping[str, int], *, follow_controls: bool = False
) -> dict[str, int]:
    """For each node, the union of the bit sets of the roots that cannot be computed without it.

    Nodes that no root needs are left out. The graph may have loops; `follow_controls` also walks
    control edges.
    """
    return _spread(
        {name: node.inputs + node.controls * follow_controls for name, node in graph.items()}, roots
    )


def reached_from(
    graph: Graph, roots: Mapping[str, int], *, follow_controls: bool = False
) -> dict[str, int]:
    """For each node, the set of roots that flow into it; the mirror image of `needed_by`."""
    consumers: dict[str, list[str]] = {}
    for name, node in graph.items():
        for source in node.inputs + node.controls * follow_controls:
            consumers.setdefault(source, []).append(name)
    return _spread(consumers, roots)


def _spread(neighbours: Mapping[str, Iterable[str]], roots: Mapping[str, int]) -> dict[str, int]:
    """Carry the bit sets along the edges until nothing changes."""
    sets = dict(roots)
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

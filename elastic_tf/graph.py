"""Data flow of a traced training step: the order of the tensors and what each op is needed for.

Nothing here looks at a name to decide what something is. Sets of tensors are Python integers
with bit k standing for tensor k, so that the union of two sets is one `|`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from elastic_tf.state import host_generators_kept


class Node(NamedTuple):
    """One op of an executed graph.

    Attributes:
        op: the op's type.
        inputs: names of the nodes whose outputs it takes.
        ports: number of the output taken, for each input.
        controls: names of the nodes it waits for without taking anything.
    """

    op: str
    inputs: tuple[str, ...]
    ports: tuple[int, ...] = ()
    controls: tuple[str, ...] = ()


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
    """For each node, the set of roots that cannot be computed without it.

    Args:
        graph: nodes by name; loops are allowed.
        roots: node name -> bit set it stands for.
        follow_controls: also walk control edges.

    Returns:
        Node name -> union of the bit sets of the roots downstream of it. Nodes that no root needs
        are left out.
    """
    return _spread(_sources(graph, follow_controls), roots)


def reached_from(
    graph: Graph, roots: Mapping[str, int], *, follow_controls: bool = False
) -> dict[str, int]:
    """For each node, the set of roots that flow into it; the mirror image of `needed_by`."""
    consumers: dict[str, list[str]] = {}
    for name, sources in _sources(graph, follow_controls).items():
        for source in sources:
            consumers.setdefault(source, []).append(name)
    return _spread(consumers, roots)


def _sources(graph: Graph, follow_controls: bool) -> dict[str, tuple[str, ...]]:
    """Node name -> names of the nodes it waits for."""
    if follow_controls:
        return {name: node.inputs + node.controls for name, node in graph.items()}
    return {name: node.inputs for name, node in graph.items()}


def _spread(neighbours: Mapping[str, Iterable[str]], roots: Mapping[str, int]) -> dict[str, int]:
    """Carry the bit sets along the edges until nothing changes."""
    sets = dict(roots)
    queue = deque(sets)
    waiting = set(queue)
    while queue:
        name = queue.popleft()
        waiting.discard(name)
        bits = sets[name]
        for neighbour in neighbours.get(name, ()):
            old = sets.get(neighbour, 0)
            if old | bits != old:
                sets[neighbour] = old | bits
                if neighbour not in waiting:
                    waiting.add(neighbour)
                    queue.append(neighbour)
    return sets


def forward_order(model: tf.keras.Model, spec: Any = None) -> list[tf.Variable]:
    """The trainable variables of `model` in the order in which the forward pass first uses them.

    A tensor is used where its value first meets data: the first op, in tracing order, that depends
    both on the tensor and on the model's input. Tensors that meet the data in the same op (gamma
    and beta of a batch normalisation) keep their order in `model.trainable_variables`; tensors
    that the forward pass never uses come last.

    Args:
        model: a built Keras model.
        spec: nested `tf.TensorSpec` of the model's input; taken from the model if left out.

    Returns:
        N variables, input side first.

    Raises:
        ValueError: the model is not built, or has no trainable tensor.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 5 (tensors sorted in execution order).
    """
    if spec is None:
        spec = input_spec(model)
    variables = list(model.trainable_variables)
    if not variables:
        raise ValueError(
            f"The model must have a trainable tensor. Received: model '{model.name}' with "
            f"{len(model.weights)} weights, none trainable. Set `layer.trainable = True` on the "
            "layers to adapt."
        )

    run = tf.function(lambda inputs: model(inputs, training=True))
    with host_generators_kept(model):
        graph = run.get_concrete_function(spec).graph
    position: dict[int, int] = {}
    captured = {id(outer): inner for outer, inner in graph.captures}
    inner_captures = {id(inner) for inner in captured.values()}
    data = {tensor.op for tensor in graph.inputs if id(tensor) not in inner_captures}
    rank = {op: index for index, op in enumerate(graph.get_operations())}
    consumers = {op: _consumers(op) for op in rank}
    data = _closure(data, consumers)
    on_replicas = model.distribute_strategy.experimental_local_results
    for variable in variables:
        placeholder = captured.get(id(on_replicas(variable)[0].handle))
        if placeholder is None:
            continue
        meets = [rank[op] for op in _closure({placeholder.op}, consumers) if op in data]
        if meets:
            position[id(variable)] = min(meets)
    return sorted(variables, key=lambda variable: position.get(id(variable), len(rank)))


def input_spec(model: tf.keras.Model) -> Any:
    """Nested `tf.TensorSpec` of what `model` is called with.

    Raises:
        ValueError: the model has never seen an input.
    """
    if getattr(model, "inputs", None) and getattr(model, "_is_graph_network", False):
        return tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), model.input
        )
    saved = model.save_spec()
    if saved is None:
        raise ValueError(
            f"The model must be built. Received: model '{model.name}' that has never seen an "
            "input. Call it once on a batch: model(x)."
        )
    args, _ = saved
    return args[0]


def _consumers(op: tf.Operation) -> list[tf.Operation]:
    return [consumer for tensor in op.outputs for consumer in tensor.consumers()]


def _closure(
    start: set[tf.Operation], consumers: Mapping[tf.Operation, list[tf.Operation]]
) -> set[tf.Operation]:
    """Every op downstream of `start`, itself included."""
    seen = set(start)
    queue = list(start)
    while queue:
        for op in consumers[queue.pop()]:
            if op not in seen:
                seen.add(op)
                queue.append(op)
    return seen

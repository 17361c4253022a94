"""The order of the tensors: as the forward pass first uses them, read from its graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from elastic_tf.engine.snapshot import host_generators_kept
from elastic_tf.stack import never_differentiated


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
    with host_generators_kept(model), never_differentiated():
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

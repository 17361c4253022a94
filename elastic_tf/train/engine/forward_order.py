"""The order of the tensors: as the forward pass first uses them, read from its graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.graph import captured, members, nodes_of, reached_from
from elastic_tf.train.engine.snapshot import host_generators_kept


def forward_order(model: tf.keras.Model, graph: Any = None) -> list[tf.Variable]:
    """The trainable variables of `model` in the order in which the forward pass first uses them.

    `graph` is that of a `traced_pass` in training; None traces one.

    A tensor is used where its value first meets data: the first op, in tracing order, that depends
    both on the tensor and on the model's input. Tensors that meet the data in the same op (gamma
    and beta of a batch normalisation) keep their order in `model.trainable_variables`; tensors
    that the forward pass never uses come last.

    Raises:
        ValueError: the model is not built, or has no trainable tensor.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 5 (tensors sorted in execution order).
    """
    if graph is None:  # first: weights of a model that is not built cannot be told in Keras 2
        graph = traced_pass(model, input_spec(model), training=True).graph
    variables = stack.trainable(model)
    if not variables:
        raise ValueError(
            f"The model must have a trainable tensor. Received: model '{model.name}' with "
            f"{len(model.weights)} weights, none trainable. Set `layer.trainable = True` on the "
            "layers to adapt."
        )
    own = captured(graph, variables)
    held = {inside.op for _, inside in graph.captures}
    every = (1 << len(variables)) - 1
    roots = {tensor.op: every + 1 for tensor in graph.inputs if tensor.op not in held}
    nodes = nodes_of(graph.get_operations())
    flows = reached_from(nodes, {**roots, **{op: 1 << k for op, k in own.items()}})
    order: list[int] = []
    left = every
    for op in nodes:  # in tracing order
        if flows.get(op, 0) > every:
            order += members(flows[op] & left)
            left &= ~flows[op]
    return [variables[k] for k in (*order, *members(left))]


def traced_pass(model: tf.keras.Model, spec: Any, *, training: bool) -> Any:
    """The concrete function of a forward pass on such inputs; nothing runs."""
    run = tf.function(lambda inputs: stack.called(model, inputs, training))
    with host_generators_kept(model), stack.never_differentiated():
        return run.get_concrete_function(spec)


def input_spec(model: tf.keras.Model) -> Any:
    """Nested `tf.TensorSpec` of what `model`, which must be built, is called with."""
    spec = stack.input_spec(model)
    if spec is None:
        raise ValueError(
            f"The model must be built. Received: model '{model.name}' that has never seen an "
            "input. Call it once on a batch: model(x)."
        )
    return spec

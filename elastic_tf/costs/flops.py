"""Floating point operations of a training step, counted in its traced graph.

Ops from which neither the result of the step nor a variable gets anything are left out. Fusing ops,
as TensorFlow does later, moves their operations and does not change them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, optimizers
from elastic_tf.costs import op_flops
from elastic_tf.engine.checks import batch_explained
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.engine.snapshot import host_generators_kept
from elastic_tf.inputs.batches import as_batch
from elastic_tf.plan import Plan, as_plan
from elastic_tf.timing.dataflow import Node, needed_by, reached_from

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


@dataclass(frozen=True)
class Flops:
    """Floating point operations of one step; one multiply-add is 2.

    Attributes:
        forward: of the forward pass, the loss and the metrics.
        backward: of the gradients.
        update: of the optimizer.
        by_op: of the whole step by type of op; those that take none are left out.
        uncounted: how many ops of each type are not in the numbers: known only while they run.
    """

    forward: int
    backward: int
    update: int
    by_op: Mapping[str, int]
    uncounted: Mapping[str, int]

    @property
    def total(self) -> int:
        """Of the whole step."""
        return self.forward + self.backward + self.update


def step_flops(
    model: ElasticMixin,
    x: Any,
    y: Any,
    mask: Plan | np.ndarray | None = None,
    *,
    sample_weight: Any = None,
) -> Flops:
    """Floating point operations of one training step under `mask`.

    The step is traced, not run: weights, slots, metrics and random generators stay as they are.

    Args:
        model: compiled elastic model.
        x: inputs of one batch.
        y: targets of that batch.
        mask: a plan, or True where a tensor is trained; bool, shape (N,), forward order. None: all.
        sample_weight: weights of the samples, if training has them.

    Raises:
        ValueError: `mask` is not one bool for each tensor.
    """
    tensors = arguments.elastic(model, compiled=True).tensors
    trained = [tensor for tensor, on in zip(tensors, as_plan(mask, len(tensors)).mask) if on]
    optimizers.build(model.optimizer, model.trainable_variables)
    data = as_batch(x, y, sample_weight)

    @tf.function
    def step(data: Any) -> Any:
        made, gradients = model.gradients(data, trained)
        optimizers.apply_selected(model.optimizer, gradients, trained)
        return (made.loss, model.finish(made)), gradients

    nodes: dict[str, Node] = {}
    ops: dict[str, tf.Operation] = {}
    with host_generators_kept(model), batch_explained(data):
        graph = step.get_concrete_function(data).graph
    names = [name for name, _ in _inline(graph, "", (), nodes, ops)]
    results = len(tf.nest.flatten(graph.structured_outputs[0], expand_composites=True))
    ends = [*names, *(op.name for op in graph.control_outputs)]
    needed = needed_by(nodes, dict.fromkeys(ends, 1), follow_controls=True)
    in_forward = needed_by(nodes, dict.fromkeys(names[:results], 1))
    in_backward = needed_by(nodes, dict.fromkeys(names[results:], 1))
    after = reached_from(nodes, dict.fromkeys(in_backward.keys() - in_forward.keys(), 1))
    batch = [tensor.op.name for tensor in graph.inputs[: len(tf.nest.flatten(data))]]
    # updates of metrics are of the forward pass too, but for their counters
    of_batch = {*reached_from(nodes, dict.fromkeys(batch, 1))} - {*after} - {*in_backward}

    parts = {"forward": 0, "backward": 0, "update": 0}
    by_op: Counter[str] = Counter()
    uncounted: Counter[str] = Counter()
    for name in ops.keys() & needed.keys():
        kind, operations = ops[name].type, op_flops.count(ops[name])
        if operations is None:
            uncounted[kind] += 1
            continue
        rest = "backward" if name in in_backward else "update"
        parts["forward" if name in in_forward or name in of_batch else rest] += operations
        by_op[kind] += operations
    return Flops(**parts, by_op=dict(+by_op), uncounted=dict(uncounted))


def graph_flops(graph: Any) -> int:
    """Floating point operations of one run of a FuncGraph, of those ops that something needs."""
    nodes: dict[str, Node] = {}
    ops: dict[str, tf.Operation] = {}
    names = [name for name, _ in _inline(graph, "", (), nodes, ops)]
    ends = [*names, *(op.name for op in graph.control_outputs)]
    needed = needed_by(nodes, dict.fromkeys(ends, 1), follow_controls=True)
    return sum(op_flops.count(ops[name]) or 0 for name in ops.keys() & needed.keys())


def _inline(
    graph: Any,
    prefix: str,
    fed: Sequence[tuple[str, int]],
    nodes: dict[str, Node],
    ops: dict[str, tf.Operation],
) -> list[tuple[str, int]]:
    """Add a FuncGraph to `nodes` and `ops`, in the place of calls the ops of the function called.

    `fed` says which node and port each input of the graph comes from (empty for the outermost); the
    result says it of each output.
    """
    sources = {tensor.name: source for tensor, source in zip(graph.inputs, fed)}

    def source(tensor: tf.Tensor) -> tuple[str, int]:
        return sources.get(tensor.name, (prefix + tensor.op.name, tensor.value_index))

    for op in graph.get_operations():
        if op.outputs and op.outputs[0].name in sources:
            continue  # an argument
        name = prefix + op.name
        taken = [source(tensor) for tensor in op.inputs]
        controls = tuple(prefix + other.name for other in op.control_inputs)
        if op.type in _CALLS:
            body = graph._get_function(op.get_attr("f").name).graph
            results = _inline(body, f"{name}/", taken, nodes, ops)
            sources.update(zip((tensor.name for tensor in op.outputs), results))
            # what waits for the call waits for what lasts of it
            lasting = tuple(f"{name}/{other.name}" for other in body.control_outputs)
            nodes[name] = Node("NoOp", (), controls=controls + lasting)
        else:
            names, ports = tuple(n for n, _ in taken), tuple(p for _, p in taken)
            nodes[name] = Node(op.type, names, ports, controls)
            ops[name] = op
    return [source(tensor) for tensor in graph.outputs]

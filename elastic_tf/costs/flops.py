"""Floating point operations of a training step, counted in its traced graph.

Ops from which neither the result of the step nor a variable gets anything are left out. Fusing ops,
as TensorFlow does later, moves their operations and does not change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from elastic_tf.costs import op_flops
from elastic_tf.timing.dataflow import Node, needed_by

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


def graph_flops(graph: Any) -> int:
    """Floating point operations of one run of a FuncGraph; one multiply-add is 2.

    `StepFunction(model, mask).graph(data)` is the graph of a training step. What runs in a loop is
    left out: how often is known only while it runs.
    """
    nodes: dict[str, Node] = {}
    ops: dict[str, tf.Operation] = {}
    ends = [*_inline(graph, "", (), nodes, ops), *(op.name for op in graph.control_outputs)]
    needed = needed_by(nodes, dict.fromkeys(ends, 1), follow_controls=True)
    return sum(op_flops.count(ops[name]) or 0 for name in ops.keys() & needed.keys())


def _inline(
    graph: Any,
    prefix: str,
    fed: Sequence[str],
    nodes: dict[str, Node],
    ops: dict[str, tf.Operation],
) -> list[str]:
    """Add a FuncGraph to `nodes` and `ops`, in the place of calls the ops of the function called.

    `fed` names the node of each input of the graph (empty for the outermost); the result does so
    for each output.
    """
    sources = {tensor.name: source for tensor, source in zip(graph.inputs, fed)}

    def source(tensor: tf.Tensor) -> str:
        return sources.get(tensor.name, prefix + tensor.op.name)

    for op in graph.get_operations():
        if op.outputs and op.outputs[0].name in sources:
            continue  # an argument
        name, inputs = prefix + op.name, tuple(source(tensor) for tensor in op.inputs)
        controls = tuple(prefix + other.name for other in op.control_inputs)
        if op.type in _CALLS:
            body = graph._get_function(op.get_attr("f").name).graph
            results = _inline(body, f"{name}/", inputs, nodes, ops)
            sources.update(zip((tensor.name for tensor in op.outputs), results))
            # what waits for the call waits for what lasts of it
            lasting = tuple(f"{name}/{other.name}" for other in body.control_outputs)
            nodes[name] = Node("NoOp", (), controls=controls + lasting)
        else:
            nodes[name], ops[name] = Node(op.type, inputs, controls=controls), op
    return [source(tensor) for tensor in graph.outputs]

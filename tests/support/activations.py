"""Activation memory: what a training step must keep from the forward pass for the backward pass.

Read from the graph that TensorFlow differentiates: the memory of this program, not of an ideal one.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.graph import SHAPES, changing, made, needed_by, nodes_of, reached_from
from elastic_tf.memory.ops import SCRATCH, tensor_bytes
from elastic_tf.plan import Plan
from elastic_tf.timing.step import StepFunction
from elastic_tf.train.batches import batch_of
from elastic_tf.train.engine.mixin import ElasticMixin

# Their result is their first input, under another shape or name.
_SAME_BYTES = frozenset(
    "ExpandDims Identity IdentityN PreventGradient Reshape Squeeze StopGradient".split()
)


def activation_bytes(model: ElasticMixin, data: Any, plan: Plan | np.ndarray | None = None) -> int:
    """Bytes of the activations that a training step under a plan keeps for its backward pass.

    What depends on weights alone is no activation. A tensor that several gradients take counts
    once, also reshaped. The batch counts where a gradient takes it.
    """
    data = batch_of(data)
    graph = StepFunction(model, plan, jit_compile=False).graph(data)
    loss, _, gradients = graph.structured_outputs
    wanted = [g for g in tf.nest.flatten(gradients, expand_composites=True) if g is not None]
    ops, batch = graph.get_operations(), graph.inputs[: len(tf.nest.flatten(data))]
    # all that is traced behind the loss; what depends on weights alone is no activation
    first, nodes = ops.index(_source(loss).op) + 1, nodes_of(ops, SHAPES)
    forward = {op: nodes[op] for op in ops[:first] if op in nodes}
    values = reached_from(nodes, [*(tensor.op for tensor in batch), *changing(forward)])
    needed = needed_by(nodes, [tensor.op for tensor in wanted])
    takers = [op for op in ops[first:] if op in nodes and op in needed and op.type not in SHAPES]
    kept = {
        _source(tensor).ref(): _source(tensor)
        for tensor in (tensor for op in takers for tensor in op.inputs)
        if tensor.op in values and tensor.op in forward
    }
    sizes = [tensor_bytes(t) for t in kept.values() if (t.op.type, t.value_index) != SCRATCH]
    return sum(sizes)


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor that this one is, under another shape or name."""
    return made(tensor, _SAME_BYTES)

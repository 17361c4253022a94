"""Activation memory: what a training step must keep from the forward pass for the backward pass.

Read from the graph that TensorFlow differentiates: the memory of this program, not of an ideal one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.engine import freezing
from elastic_tf.engine.checks import batch_explained
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.engine.snapshot import READS, host_generators_kept
from elastic_tf.inputs.batches import as_batch
from elastic_tf.plan import Plan, as_plan
from elastic_tf.stack import never_differentiated
from elastic_tf.timing.dataflow import Node, needed_by, reached_from

# Their result is their first input, under another shape or name.
_SAME_BYTES = frozenset(
    "ExpandDims Identity IdentityN PreventGradient Reshape Squeeze StopGradient".split()
)
# They give the same whatever values they are given.
_SHAPES = frozenset({"Rank", "Shape", "ShapeN", "Size"})
# cuDNN's scratch memory, an output of unknown shape; empty on CPUs.
_SCRATCH = ("FusedBatchNormV3", 5)
# Stateful ops that make no numbers of their own.
_NOT_RANDOM = READS | {"Placeholder"}


class Activation(NamedTuple):
    """A tensor that the forward pass hands to the backward pass."""

    name: str  # of the op that makes it, in the traced graph
    op: str  # type of that op
    shape: tuple[int, ...] | None  # None where a length is known only while the step runs
    bytes: int | None  # None where it is not known


def activation_bytes(model: ElasticMixin, data: Any, mask: Plan | np.ndarray | None = None) -> int:
    """Bytes of the activations that a training step under `mask` keeps for its backward pass.

    What depends on weights alone is no activation. A tensor that several gradients take counts
    once, also reshaped. The batch counts where a gradient takes it.

    Args:
        model: compiled elastic model.
        data: one batch, (x, y) or (x, y, sample_weight).
        mask: a plan, or True where a tensor is trained; bool, shape (N,), forward order. None: the
            model's own plan.

    Raises:
        ValueError: `mask` does not fit, or the size of an activation is not known: a loop keeps as
            many as it runs, which the graph does not tell.
    """
    kept = activations(model, data, mask)
    unknown = [activation for activation in kept if activation.bytes is None]
    if unknown:
        raise ValueError(
            "Every activation must have a known size. Received: "
            f"'{unknown[0].name}' of type {unknown[0].op} ({len(unknown)} of {len(kept)} are "
            "unknown). costs.activations.activations lists those that are known; recurrent "
            "layers with unroll=True are known."
        )
    return sum(activation.bytes or 0 for activation in kept)


def activations(
    model: ElasticMixin, data: Any, mask: Plan | np.ndarray | None = None
) -> tuple[Activation, ...]:
    """The activations that `activation_bytes` counts, in the order in which they are made.

    What a layer does inside a `tf.function` of its own is one op here: it counts with all that it
    hands to its gradient.
    """
    tensors = arguments.elastic(model, compiled=True).tensors
    mask = model.mask if mask is None else as_plan(mask, len(tensors)).mask
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise ValueError(
            f"`data` must be (x, y) or (x, y, sample_weight). Received: data={brief(data)}."
        )
    data = as_batch(*data)
    if not mask.any():
        return ()
    trained = [tensor for tensor, on in zip(tensors, mask) if on]
    with host_generators_kept(model), never_differentiated(), batch_explained(data):
        graph = _traced(model, data, trained)
    given = len(tf.nest.flatten(data))
    return _handed_over(graph, graph.inputs[:given], graph.inputs[given])


def _traced(model: ElasticMixin, data: Any, trained: list[tf.Variable]) -> Any:
    """The FuncGraph of a batch and the loss's gradient; what depends on the latter is backward."""

    @tf.function
    def gradients(data: Any, seed: tf.Tensor) -> list[Any]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trained)
            with freezing.frozen(freezing.left_out(model, trained)):
                loss = model.forward(data).loss
        seed = tf.broadcast_to(tf.cast(seed, loss.dtype), loss.shape)
        return tape.gradient(loss, trained, output_gradients=seed)

    return gradients.get_concrete_function(data, tf.ones(())).graph


def _handed_over(graph: Any, batch: Sequence[Any], seed: Any) -> tuple[Activation, ...]:
    """Tensors made of the batch, or at random, that what depends on the seed takes."""
    ops = graph.get_operations()
    nodes = {
        op.name: Node(
            op.type,
            # what only asks for a shape takes nothing
            inputs=() if op.type in _SHAPES else tuple(tensor.op.name for tensor in op.inputs),
            controls=tuple(other.name for other in op.control_inputs),
        )
        for op in ops
    }
    random = (op.name for op in ops if op.op_def.is_stateful and op.type not in _NOT_RANDOM)
    values = reached_from(nodes, dict.fromkeys([*(x.op.name for x in batch), *random], 1))
    backward = reached_from(nodes, {seed.op.name: 1}, follow_controls=True)
    needed = needed_by(nodes, {tensor.op.name: 1 for tensor in graph.outputs})

    kept: dict[str, Activation] = {}
    for op in ops:
        if op.name in backward and op.name in needed and op.type not in _SHAPES:
            for tensor in op.inputs:
                made = tensor
                while made.op.type in _SAME_BYTES:
                    made = made.op.inputs[made.value_index]
                is_handed_over = tensor.op.name not in backward and made.op.name in values
                if is_handed_over and (made.op.type, made.value_index) != _SCRATCH:
                    kept[made.name] = _described(made)
    return tuple(kept.values())


def _described(tensor: Any) -> Activation:
    count = tensor.shape.num_elements()
    shape = None if count is None else tuple(tensor.shape)
    has_size = count is not None and tensor.dtype not in (tf.resource, tf.string, tf.variant)
    size = count * tensor.dtype.size if has_size else None
    return Activation(tensor.op.name, tensor.op.type, shape, size)

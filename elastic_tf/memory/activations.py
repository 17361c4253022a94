"""Activation memory: what a training step must keep from the forward pass for the backward pass.

Read from the graph that TensorFlow differentiates: the memory of this program, not of an ideal one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.engine import freezing, modes
from elastic_tf.engine.checks import batch_explained
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.engine.snapshot import host_generators_kept
from elastic_tf.graph import SHAPES, Node, changing, made, needed_by, nodes_of, reached_from
from elastic_tf.inputs.batches import batch_of
from elastic_tf.plan import Plan, as_plan
from elastic_tf.stack import never_differentiated

# Their result is their first input, under another shape or name.
_SAME_BYTES = frozenset(
    "ExpandDims Identity IdentityN PreventGradient Reshape Squeeze StopGradient".split()
)
# cuDNN's scratch memory, an output of unknown shape; empty on CPUs.
SCRATCH = ("FusedBatchNormV3", 5)


def activation_bytes(
    model: ElasticMixin, data: Any, plan: Plan | np.ndarray | None = None
) -> int | None:
    """Bytes of the activations that a training step under a plan keeps for its backward pass.

    What depends on weights alone is no activation. A tensor that several gradients take counts
    once, also reshaped. The batch counts where a gradient takes it. What a layer does inside a
    `tf.function` of its own is one op here: it counts with all that it hands to its gradient.

    Args:
        model: compiled elastic model.
        data: one batch, (x, y) or (x, y, sample_weight), or a dataset of such batches.
        plan: how each tensor is trained, or a bool mask, shape (N,), forward order. None: the
            model's own plan.

    Returns:
        The bytes; None where the graph cannot say: a loop keeps as many as it runs. Recurrent
        layers with unroll=True are known.

    Raises:
        ValueError: `plan` or `data` do not fit.
    """
    tensors = arguments.elastic(model, compiled=True).tensors
    plan = model.plan if plan is None else as_plan(plan, len(tensors))
    data = batch_of(data)
    if not plan.mask.any():
        return 0
    with host_generators_kept(model), never_differentiated(), batch_explained(data):
        graph = _traced(model, data, plan)
    *batch, seed = graph.inputs[: len(tf.nest.flatten(data)) + 1]
    sizes = [tensor_bytes(kept) for kept in handed_over(graph, batch, seed, graph.outputs)]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _traced(model: ElasticMixin, data: Any, plan: Plan) -> Any:
    """The FuncGraph of a batch and the loss's gradient; what depends on the latter is backward."""
    trained = [tensor for tensor, on in zip(model.tensors, plan.mask) if on]
    watched = modes.watched(model, model.tensors, plan, trained)

    @tf.function
    def gradients(data: Any, seed: tf.Tensor) -> list[Any]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(watched)
            left_out = freezing.left_out(model, trained)
            with freezing.frozen(left_out), modes.installed(model, model.tensors, plan):
                loss = model.forward(data).loss
        seed = tf.broadcast_to(tf.cast(seed, loss.dtype), loss.shape)
        return tape.gradient(loss, watched, output_gradients=seed)

    return gradients.get_concrete_function(data, tf.ones(())).graph


def handed_over(
    graph: Any,
    batch: Sequence[tf.Tensor],
    seed: tf.Tensor,
    wanted: Sequence[tf.Tensor],
    taken: Callable[[tf.Operation], Sequence[tf.Tensor]] = lambda op: op.inputs,
) -> list[tf.Tensor]:
    """What gradients that begin with `seed` take of a forward pass.

    Each tensor once, as it was before it was reshaped or renamed; else as of `crossings`.
    """
    nodes = nodes_of(graph.get_operations(), SHAPES)
    backward = reached_from(nodes, [seed.op], follow_controls=True)
    found = (source(one) for one, _ in crossings(nodes, batch, backward, wanted, taken))
    kept = {one.name: one for one in found if (one.op.type, one.value_index) != SCRATCH}
    return list(kept.values())


def crossings(
    nodes: Mapping[Any, Node],
    batch: Sequence[tf.Tensor],
    backward: Collection[tf.Operation],
    wanted: Sequence[tf.Tensor],
    taken: Callable[[tf.Operation], Sequence[tf.Tensor]] = lambda op: op.inputs,
) -> Iterator[tuple[tf.Tensor, tf.Operation]]:
    """Tensors of a forward pass with the ops of its backward pass that take them.

    Args:
        nodes: ops of a FuncGraph; those in `SHAPES` take nothing.
        batch: its inputs; what depends on weights alone is left out, not so what is random.
        backward: the ops of the backward pass, and others.
        wanted: the gradients.
        taken: the inputs of an op that it takes, if not all.
    """
    values = reached_from(nodes, [*(tensor.op for tensor in batch), *changing(nodes)])
    needed = needed_by(nodes, [tensor.op for tensor in wanted])
    for op in nodes:
        if op in backward and op in needed and op.type not in SHAPES:
            for tensor in taken(op):
                if tensor.op in values and tensor.op not in backward:
                    yield tensor, op


def source(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor that this one is, under another shape or name."""
    return made(tensor, _SAME_BYTES)


def tensor_bytes(tensor: Any) -> int | None:
    """Bytes of a tensor or a TensorSpec; None if only a run tells."""
    count = tensor.shape.num_elements()
    has_size = count is not None and tensor.dtype not in (tf.resource, tf.string, tf.variant)
    return count * tensor.dtype.size if has_size else None

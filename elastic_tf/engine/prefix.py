"""The frozen prefix of a step: ops whose result for a sample never changes while a plan is trained.

With every tensor before a cut frozen, the activations on the cut are the same at each visit of a
sample. They are computed once, and a traced step takes them instead of the model's inputs. The cut
is found in the traced graph, by data flow, so that any Keras model and any `train_step` can be cut:
an op belongs to the prefix if it depends on the inputs and on nothing that is trained, written,
drawn at random, or a target. Whatever takes a result of the prefix from outside it is handed the
cached value; the prefix itself is then dead and is dropped from the executed graph.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from elastic_tf.engine.snapshot import READS


class Cut(NamedTuple):
    """Where a traced graph is cut.

    Attributes:
        tensors: results of the prefix that an op outside it, or the caller, takes; none where
            nothing can be computed beforehand.
        prefix: the ops whose results never change, those that hold the inputs among them.
        inputs: the latter.
    """

    tensors: list[tf.Tensor]
    prefix: frozenset[tf.Operation]
    inputs: frozenset[tf.Operation]

    def kinds(self) -> list[tuple[str, tf.DType, list[int | None]]]:
        """What tells whether two traces were cut alike: op type, dtype, shape for one sample."""
        return [
            ("" if t.op in self.inputs else t.op.type, t.dtype, t.shape[1:].as_list())
            for t in self.tensors
        ]


def find_cut(
    graph: Any,
    inputs: Sequence[tf.Tensor],
    results: Sequence[tf.Tensor],
    trained: Collection[tf.Variable],
) -> Cut:
    """The cut of a graph that was traced for inputs of a fixed batch size.

    With a batch size that is not fixed, shapes are results of ops, and cut the graph elsewhere.

    Args:
        graph: FuncGraph of a forward pass or a whole step.
        inputs: what holds the samples, each (batch, ...).
        results: what the function will return.
        trained: variables that change while the cut is in use.

    Returns:
        The cut; without tensors where nothing can be computed beforehand.
    """
    batch = inputs[0].shape[0]
    sources = {tensor.op for tensor in inputs}
    wanted = {id(tensor) for tensor in results}
    fixed = _fixed(graph, {id(variable.handle) for variable in trained})
    excluded: set[tf.Operation] = set()
    while True:
        prefix = _prefix(graph, sources, fixed, excluded)
        crossing = [
            tensor
            for op in graph.get_operations()  # in tracing order: equal traces give equal lists
            if op in prefix
            for tensor in op.outputs
            if id(tensor) in wanted or any(user not in prefix for user in tensor.consumers())
        ]
        # what has no row for each sample (a sum over the batch, a shape) is computed in the step
        without_rows = {
            tensor.op
            for tensor in crossing
            if tensor.op not in sources and (not tensor.shape.rank or tensor.shape[0] != batch)
        }
        if not without_rows:
            break
        excluded |= without_rows
    deep = any(tensor.op not in sources for tensor in crossing)
    return Cut(crossing if deep else [], frozenset(prefix), frozenset(sources))


def hand_over(cut: Cut, values: Sequence[tf.Tensor]) -> None:
    """Let everything outside the prefix take `values` instead of the tensors of the cut.

    To be called while the step is traced, after its last op.

    Args:
        cut: of the graph that is being traced.
        values: a tensor for each of the cut's.
    """
    for tensor, value in zip(cut.tensors, values):
        for user in tensor.consumers():
            if user not in cut.prefix:
                for place, taken in enumerate(user.inputs):
                    if taken is tensor:
                        user._update_input(place, value)


def _prefix(
    graph: Any,
    sources: Collection[tf.Operation],
    fixed: Collection[int],
    excluded: Collection[tf.Operation],
) -> set[tf.Operation]:
    """The ops that depend on a source and, beside sources, on nothing but what is fixed."""
    constant: set[tf.Operation] = set()
    prefix = set(sources)
    for op in graph.get_operations():
        if op in prefix or op in excluded:
            continue
        if op.type == "Placeholder":
            if all(id(tensor) in fixed for tensor in op.outputs):
                constant.add(op)
            continue
        if op.op_def.is_stateful and op.type not in READS:
            continue  # draws at random, writes, or calls what may
        before = {tensor.op for tensor in op.inputs}
        if before <= constant:
            constant.add(op)
        elif before <= constant | prefix:
            prefix.add(op)
    return prefix


def _fixed(graph: Any, trained: Collection[int]) -> set[int]:
    """Ids of the placeholders of captured variables that the graph only reads, and of constants.

    Args:
        graph: FuncGraph.
        trained: ids of the handles of variables that change.
    """
    return {
        id(inside)
        for outside, inside in graph.captures
        if id(outside) not in trained
        and (inside.dtype != tf.resource or all(u.type in READS for u in inside.consumers()))
    }

"""Where a traced graph is cut: before it, what never changes for a sample; behind it, the rest.

With every tensor before a cut frozen, the activations on it are the same at each visit of a sample.
It is found by data flow, so that any Keras model and any `train_step` can be cut: an op belongs to
the prefix if it depends on the inputs and on nothing that is trained, written, drawn at random, or
a target.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf.graph import READS, captured, has_state, made, nodes_of, reach, reached_from, takes
from elastic_tf.stack import trainable, wrap_function

_FOLDED = {"FusedBatchNormV3": "BiasAdd"}  # what a normalisation ends in, and ends in folded


class Cut(NamedTuple):
    """Where a traced graph is cut."""

    # results of the prefix that an op outside it, or the caller, takes; none where no layer with
    # weights can be computed in advance
    tensors: list[tf.Tensor]
    # what tells whether two traces were cut alike: op type, dtype, shape for one sample
    kinds: list[tuple[str, tf.DType, list[int | None]]]
    reads: frozenset[int]  # ids of the handles of the variables that they depend on
    prefix: frozenset[tf.Operation]  # whose results never change, what holds the inputs among them

    def depends_on(self, variables: Sequence[tf.Variable]) -> np.ndarray:
        """True for the variables that it depends on; bool, shape (variables,)."""
        return np.array([id(variable.handle) in self.reads for variable in variables], bool)

    def varying(self, model: Any) -> list[tf.Variable]:
        """The trainable variables of a model that it does not depend on."""
        return [one for one in trainable(model) if id(one.handle) not in self.reads]


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
    """
    batch = inputs[0].shape[0]
    sources = {tensor.op for tensor in inputs}
    wanted = {id(tensor) for tensor in results}
    every = graph.get_operations()
    needed = needed_ops(every, results) | sources
    # what was folded has left ops behind that nobody takes
    nodes = nodes_of((op for op in every if op in needed), sources)
    varying = _varying(graph, nodes, trained) - sources
    while True:
        # one bit for what depends on the samples, the other for what depends on what varies
        flows = reached_from(nodes, {**dict.fromkeys(varying, 2), **dict.fromkeys(sources, 1)})
        prefix = frozenset(op for op, bits in flows.items() if bits == 1)
        crossing = [
            tensor
            for op in nodes  # in tracing order: equal traces give equal lists
            if op in prefix
            for tensor in op.outputs
            if id(tensor) in wanted
            or any(user in nodes and user not in prefix for user in tensor.consumers())
        ]
        # what has no row for each sample (a sum over the batch, a shape) is computed in the step
        without_rows = {
            tensor.op
            for tensor in crossing
            if tensor.op not in sources and (not tensor.shape.rank or tensor.shape[0] != batch)
        }
        if not without_rows:
            break
        varying |= without_rows
    behind = reach((tensor.op for tensor in crossing), lambda op: nodes[op].inputs)
    reads = frozenset(
        id(outside)
        for outside, inside in graph.captures
        if inside.dtype == tf.resource and inside.op in behind
    )
    tensors = crossing if reads else []
    # functions with a gradient of their own end in a copy
    makers = [made(tensor, ("IdentityN",)).op for tensor in tensors]
    kinds = [
        ("" if op in sources else _FOLDED.get(op.type, op.type), one.dtype, one.shape[1:].as_list())
        for op, one in zip(makers, tensors)
    ]
    return Cut(tensors, kinds, reads, prefix)


def needed_ops(ops: Iterable[tf.Operation], results: Iterable[tf.Tensor]) -> set[tf.Operation]:
    """The ops that run for the sake of some results, or of what they leave behind."""
    roots = [op for op in ops if has_state(op.type)] + [tensor.op for tensor in results]
    return reach(roots, lambda op: [*takes(op), *op.control_inputs])


def _varying(
    graph: Any, ops: Iterable[tf.Operation], trained: Collection[tf.Variable]
) -> set[tf.Operation]:
    """The ops that may give another result each time; what a graph only reads never changes."""
    fixed = {
        inside.op
        for _, inside in graph.captures
        if inside.dtype != tf.resource or all(user.type in READS for user in inside.consumers())
    } - captured(graph, trained).keys()
    return {
        op for op in ops if has_state(op.type) or (op.type == "Placeholder" and op not in fixed)
    }


def between(
    graph: Any, given: Sequence[tf.Tensor], taken: Sequence[tf.Tensor]
) -> Callable[..., list[tf.Tensor]]:
    """The ops of a traced graph between some tensors and others, as a function."""
    whole = wrap_function.WrappedFunction(graph, wrap_function.VariableHolder())
    # without a signature each call first fails, and writes its tensors out for the error: 20 ms
    specs = [tf.TensorSpec(one.shape, one.dtype, f"given_{k}") for k, one in enumerate(given)]
    return whole.prune(given, taken, input_signature=(tuple(specs), {}))

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
from elastic_tf.stack import trainable

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
    ends: Collection[int] | None = None,
) -> Cut:
    """The cut of a graph that was traced for inputs of a fixed batch size.

    With a batch size that is not fixed, shapes are results of ops, and cut the graph elsewhere.

    Args:
        graph: FuncGraph of a forward pass or a whole step.
        inputs: what holds the samples, each (batch, ...).
        results: what the function will return.
        trained: variables that change while the cut is in use.
        ends: ids of the tensors that it may lie on, beside the inputs. None: any.
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
        not_here = {
            one.op
            for one in crossing
            if one.op not in sources
            if not (one.shape.rank and one.shape[0] == batch and (not ends or id(one) in ends))
        }
        if not not_here:
            break
        varying |= not_here
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
    starts = {tensor.name for tensor in given}

    def makers(tensors: Iterable[tf.Tensor]) -> list[tf.Operation]:
        return [tensor.op for tensor in tensors if tensor.name not in starts]

    needed = reach(makers(taken), lambda op: makers(op.inputs) + op.control_inputs)
    used = {tensor.name for op in needed for tensor in op.inputs}
    held = {inside.name: outside for outside, inside in graph.captures if inside.name in used}
    names = {op.name for op in needed} - {name.partition(":")[0] for name in held}
    whole = graph.as_graph_def()
    part = tf.compat.v1.GraphDef(library=whole.library, versions=whole.versions)
    part.node.extend(node for node in whole.node if node.name in names)

    def run(*values: tf.Tensor) -> list[tf.Tensor]:
        capture = tf.compat.v1.get_default_graph().capture
        found = {tensor.name: value for tensor, value in zip(given, values)}
        known = {name: capture(outside) for name, outside in held.items()}
        known |= {name: value for name, value in found.items() if name in used}
        rest = [tensor.name for tensor in taken if tensor.name not in found]
        made = tf.graph_util.import_graph_def(part, known, rest, name="")
        found |= zip(rest, made)
        return [found[tensor.name] for tensor in taken]

    specs = [tf.TensorSpec(one.shape, one.dtype) for one in given]
    return tf.function(run, specs, autograph=False).get_concrete_function()

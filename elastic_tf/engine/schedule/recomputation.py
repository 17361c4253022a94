"""Activations dropped in the forward pass and computed again in the backward pass.

The forward pass is cut into segments, anywhere between two ops. What crosses a cut is kept; what
else the backward pass takes of a segment is computed again from it, by copies of the segment's ops,
as soon as the error has come down to the segment. The copies compute the same bits. Random numbers,
reads of variables and what else has a state are never asked twice: their results are kept.

Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, Sec. 4 and Algorithm 3
(there a segment ends where its bytes reach a limit; here the cuts for a limit are found exactly).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.engine.schedule.backward import is_large, places, size
from elastic_tf.engine.schedule.segments import Sizes, cuts
from elastic_tf.graph import SHAPES, captured, has_state, nodes_of, reach, reached_from, replace


def recompute(
    loss: tf.Tensor, gradients: Sequence[Any], variables: Sequence[tf.Variable], keep: float
) -> None:
    """Let a step that is being traced keep less of its forward pass.

    To be called after the gradients are traced, and before they are applied.

    Args:
        loss: of the step.
        gradients: of it; None for variables that it does not depend on.
        variables: that are trained.
        keep: what may be kept at a time, as a share of what is kept without; as few ops as will do
            are run again. Where it is too small for any cuts, as little as possible is kept.
    """
    graph = loss.graph
    place = places(loss, gradients)
    ops = [op for op in graph.get_operations() if op not in place]
    number = {op: k for k, op in enumerate(ops)}
    again = _repeatable(graph, ops, variables)
    if not again:
        return
    uses: dict[Any, list[tf.Operation]] = {}  # what the backward pass takes
    last: dict[Any, int] = {}  # where the forward pass takes a result last
    for op in place:
        for tensor in op.inputs:
            if tensor.op in again and op.type not in SHAPES:
                uses.setdefault(tensor.ref(), []).append(op)
    for op in ops:
        for tensor in op.inputs:
            if tensor.op in again:
                last[tensor.ref()] = number[op]
    start = min(number[op] for op in again) - 1
    chosen = cuts(_sizes(ops, number, again, uses, last), start, keep)
    kept = {r for r, at in last.items() if any(number[r.deref().op] <= c < at for c in chosen)}
    for low, high in zip(chosen, chosen[1:]):
        wanted = [r.deref() for r in uses if r not in kept and low < number[r.deref().op] <= high]
        users = {user for tensor in wanted for user in uses[tensor.ref()]}
        for user in sorted(users, key=place.__getitem__):
            error = [t.op for t in user.inputs if t.op in place and is_large(t)]
            if error:
                late = {one for one in users if place[one] >= place[user]}
                _run_again(wanted, again, kept, number, [*{*error}], late)
                break


def _repeatable(
    graph: Any, ops: Sequence[tf.Operation], variables: Sequence[tf.Variable]
) -> set[tf.Operation]:
    """The ops that depend on what is trained, and give the same each time."""
    reached = reached_from(nodes_of(ops), captured(graph, variables).keys())
    none = {tf.resource, tf.variant}
    return {
        op
        for op in ops
        if op in reached
        and not has_state(op.type)
        and none.isdisjoint(tensor.dtype for tensor in (*op.inputs, *op.outputs))
    }


def _sizes(
    ops: Sequence[tf.Operation],
    number: dict[tf.Operation, int],
    again: Collection[tf.Operation],
    uses: Collection[Any],
    last: dict[Any, int],
) -> Sizes:
    """Bytes after each op."""
    crossing, taken, largest = (np.zeros(len(ops) + 1) for _ in range(3))
    for reference, at in last.items():
        tensor = reference.deref()
        crossing[number[tensor.op]] += size(tensor)
        crossing[at] -= size(tensor)
    for reference in uses:
        taken[number[reference.deref().op]] += size(reference.deref())
    for op in again:
        largest[number[op]] = max(map(size, op.outputs), default=0)
    return Sizes(np.cumsum(crossing)[:-1], taken[:-1], largest[:-1])


def _run_again(
    wanted: Sequence[tf.Tensor],
    again: Collection[tf.Operation],
    kept: Collection[Any],
    number: dict[tf.Operation, int],
    error: Sequence[tf.Operation],
    users: Collection[tf.Operation],
) -> None:
    """Hand some ops of the backward pass copies of what they want, made after others have run."""
    needed = reach(
        (tensor.op for tensor in wanted),
        lambda op: [t.op for t in op.inputs if t.op in again and t.ref() not in kept],
    )
    copies: dict[Any, tf.Tensor] = {}
    for op in sorted(needed, key=number.__getitem__):
        inputs = [copies.get(tensor.ref(), tensor) for tensor in op.inputs]
        with tf.control_dependencies(None):
            copy = op.graph.create_op(
                op.type,
                inputs,
                [tensor.dtype for tensor in op.outputs],
                name=f"again/{op.name}",
                attrs=dict(op.node_def.attr),
                op_def=op.op_def,
            )
        copy._add_control_inputs(error)
        copies.update(zip((tensor.ref() for tensor in op.outputs), copy.outputs))
    for tensor in wanted:
        replace(tensor, copies[tensor.ref()], users)

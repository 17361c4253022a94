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
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf.graph import SHAPES, captured, has_state, nodes_of, reach, reached_from, replace
from elastic_tf.train.engine.schedule.backward import is_large, places, size

_HALVINGS = 14  # of the range in which the smallest limit is looked for


class Sizes(NamedTuple):
    """Bytes of a forward pass, after or in each of its ops; shape (ops,)."""

    crossing: np.ndarray  # results that later ops take
    taken: np.ndarray  # results of the op that the backward pass takes
    largest: np.ndarray  # result of the op


def recompute(
    loss: tf.Tensor, gradients: Sequence[Any], variables: Sequence[tf.Variable], keep: float
) -> None:
    """Let a step that is being traced keep less of its forward pass.

    To be called after the gradients of its loss by the trained variables are traced, and before
    they are applied. As few ops as will do are run again to `keep` that share of what is kept at a
    time without. Where it is too small for any cuts, as little as possible is kept.
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


def cuts(sizes: Sizes, start: int, keep: float) -> list[int]:
    """The ops after which to cut, so that little is kept at a time.

    When the backward pass is in a segment it holds what crosses the cuts before, what it takes of
    the segment, and an error as large as the segment's largest result. The last segment is kept
    as it is: the backward pass begins there.

    The first is `start`, the op before all that may run again, -1 before the very first; where no
    cut pays it stands alone.
    """
    crossing = sizes.crossing
    least = [
        k
        for k in range(start + 1, len(crossing) - 1)
        if 0 < crossing[k] <= min(crossing[k - 1], crossing[k + 1])
    ]
    places = [start, *least]
    held = np.array([0.0, *crossing[least]])
    taken = np.add.reduceat(sizes.taken, np.array(places) + 1)
    largest = np.maximum.reduceat(sizes.largest, np.array(places) + 1)
    low, high = 0.0, float(taken.sum() + largest.max())
    found = _within(held, taken, largest, keep * high)
    if found is None:
        low, found = keep * high, [0]
        for _ in range(_HALVINGS):
            limit = (low + high) / 2
            tried = _within(held, taken, largest, limit)
            if tried is None:
                low = limit
            else:
                high, found = limit, tried
    return [places[k] for k in found]


def _within(
    held: np.ndarray, taken: np.ndarray, largest: np.ndarray, limit: float
) -> list[int] | None:
    """Cuts that keep to a limit of bytes, with as much kept at the end as fits; or None.

    Among the ways to cut at one place last, the one that has the least crossing the cuts before.
    """
    count = len(held)
    sums, before = np.full(count, np.inf), np.full(count, -1)
    sums[0] = 0.0
    rest = np.cumsum(taken[::-1])[::-1] + np.maximum.accumulate(largest[::-1])[::-1]
    for i in range(count):
        if sums[i] + rest[i] <= limit:
            found = [i]
            while before[found[0]] >= 0:
                found.insert(0, int(before[found[0]]))
            return found
        bytes_, most = sums[i], 0.0
        for j in range(i + 1, count):
            bytes_ += taken[j - 1]
            most = max(most, largest[j - 1])
            if bytes_ + most > limit:
                break
            if sums[i] + held[j] < sums[j]:
                sums[j], before[j] = sums[i] + held[j], i
    return None

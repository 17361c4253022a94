"""When the ops of a traced step run, so that little is in memory at a time.

In: the graph of a step while it is traced. Out: the same graph, in which each tensor is updated as
soon as its gradient exists, and activations are computed again in the backward pass. No bit of what
the step computes is another.

**Recomputation.** The forward pass is cut into segments, anywhere between two ops. What crosses a
cut is kept; what else the backward pass takes of a segment is computed again from it, by copies of
the segment's ops, as soon as the error has come down to the segment. Random numbers, reads of
variables and what else has a state are never asked twice: their results are kept. Source: Chen et
al., Training Deep Nets with Sublinear Memory Cost, 2016, Sec. 4 and Algorithm 3 (there a segment
ends where its bytes reach a limit; here the cuts for a limit are found exactly).

**Early updates.** Left to itself TensorFlow hands on the gradients of all tensors in one op, decays
all weights before the backward pass begins (while the forward pass still holds their old values,
which makes a copy of each), and passes the error back ahead of the weight gradients, which hold
activations. Here the ops of a tensor's update wait for its gradient alone, and the error is passed
on after the update. Where the error takes less memory than the gradient it is passed on before: the
update is then made in place, for nobody needs the old weights any more. Every new edge leads
forward in one order of all ops (that of tracing, in which a gradient's own ops stand right behind
what they take), so that there is no circle. Source: Moon et al., NNTrainer (the order of a layer's
gradient, its update and its derivative).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf.graph import (
    SHAPES,
    captured,
    has_state,
    nodes_of,
    reach,
    reached_from,
    replace,
    takes,
    users,
)


def recompute(
    model: Any, loss: tf.Tensor, gradients: Sequence[Any], variables: Sequence[tf.Variable]
) -> None:
    """Let a step that is being traced keep what its model was compiled to `keep`."""
    if _is_ours(model) and model._elastic.keep < 1.0:
        _recompute(loss, gradients, variables, model._elastic.keep)


@contextlib.contextmanager
def updating_early(
    model: Any, loss: tf.Tensor, gradients: Sequence[Any], variables: Sequence[tf.Variable]
) -> Iterator[None]:
    """Let the updates that are traced inside run as early as they can."""
    is_ours = _is_ours(model)
    before = len(loss.graph.get_operations()) if is_ours else 0
    yield
    if is_ours:
        _update_early(loss, gradients, variables, before)


def _is_ours(model: Any) -> bool:
    """Whether the order of the ops of a model's step is ours to choose."""
    return model._elastic.keep is not None and not (tf.executing_eagerly() or model.jit_compile)


_BATCH = 32  # Keras's own, where the size is not known when a step is traced
_LARGE = 64  # bytes; scalars and the like have fewer


def values(gradients: Sequence[Any]) -> list[tf.Tensor | None]:
    """What holds the numbers of each gradient."""
    return [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]


def places(loss: tf.Tensor, gradients: Sequence[Any]) -> dict[tf.Operation, int]:
    """The ops between a loss and its gradients, with their number in the order of tracing.

    Without those that are computed again, which are traced after them.
    """
    number = {op: k for k, op in enumerate(loss.graph.get_operations())}
    ends = [tensor.op for tensor in values(gradients) if tensor is not None]
    first, last = number[loss.op], max(map(number.__getitem__, ends), default=0)

    def between(ops: list[tf.Operation]) -> list[tf.Operation]:
        return [op for op in ops if first < number[op] <= last]

    found = reach(between(ends), lambda op: between(takes(op)))
    return {op: number[op] for op in sorted(found, key=number.__getitem__)}


def size(tensor: tf.Tensor) -> int:
    """Bytes of a tensor; 0 of handles and of what has no known rank."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or tensor.shape.rank is None:
        return 0
    lengths = (_BATCH if length is None else length for length in tensor.shape)
    return math.prod(lengths, start=tensor.dtype.size)


def is_large(tensor: tf.Tensor) -> bool:
    """Whether a tensor has the error of samples, not of a scalar."""
    return size(tensor) >= _LARGE


_HALVINGS = 14  # of the range in which the smallest limit is looked for


class Sizes(NamedTuple):
    """Bytes of a forward pass, after or in each of its ops; shape (ops,)."""

    crossing: np.ndarray  # results that later ops take
    taken: np.ndarray  # results of the op that the backward pass takes
    largest: np.ndarray  # result of the op


def _recompute(
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


def _update_early(
    loss: tf.Tensor, gradients: Sequence[Any], variables: Sequence[tf.Variable], applied: int
) -> None:
    """Let the updates of a step that is being traced run as early as they can.

    Tensors whose update takes the gradients of others too (clipping by a global norm, a loss scale)
    stay as they are. `applied` is how many ops the graph had before the optimizer was applied.
    """
    graph = loss.graph
    place = places(loss, gradients)
    ops = graph.get_operations()
    apply, is_applied = ops[applied:], set(ops[applied:])
    found = dict(enumerate(values(gradients)))
    tensors = {k: g for k, g in found.items() if g is not None and g.op in place}
    for op in apply:  # nobody waits for all gradients where an op hands each of them on
        if op.type == "IdentityN":
            for given, taken in zip(op.inputs, op.outputs):
                replace(taken, given, taken.consumers())
    holds = captured(graph, variables)
    owned = _owned(apply, tensors, holds)
    for op in ops[:applied]:  # what is computed again, right behind what it waits for
        if op not in place and op.control_inputs:
            place[op] = max((place[c] for c in op.control_inputs if c in place), default=-1)
    paths = {k: _path(tensors[k].op, place, is_applied) for k in owned}
    every = {op for path in paths.values() for op in path}
    asks: dict[int, list[int]] = {}  # places where the backward pass asks for a variable itself
    for op, at in place.items():
        for k in {holds[one] for one in takes(op) if one in holds}:
            asks.setdefault(k, []).append(at)
    for k, mine in owned.items():
        g = tensors[k]
        for op in mine:
            if op.type == "ReadVariableOp" or not any(t is g or t.op in mine for t in op.inputs):
                op._add_control_input(g.op)
        updates = [op for op in mine if op.op_def.is_stateful and op.type != "ReadVariableOp"]
        path = paths[k]
        into = [t for op in path for t in op.inputs if t.op in place and t.op not in path]
        last = max([place[t.op] for t in into] + asks.get(k, []), default=-1)
        starts = [t for t in into if is_large(t)]
        onward = _behind(starts, place, every, last)
        if not path or not onward or not updates:
            continue
        if max(size(t) for op in onward for t in op.outputs) < size(g):
            last = max(place[op] for op in onward)
            behind = _behind([t for op in onward for t in op.outputs], place, every, last)
            if behind:
                for op in path:
                    if any(t.op in place and t.op not in path for t in op.inputs):
                        op._add_control_inputs([*onward])
                onward = behind
        for op in onward:
            op._add_control_inputs(updates)


def _owned(
    ops: Sequence[tf.Operation],
    gradients: Mapping[int, tf.Tensor],
    holds: Mapping[tf.Operation, int],
) -> dict[int, list[tf.Operation]]:
    """The ops that update one tensor and take nothing of another, by number of the tensor."""
    sources: dict[Any, int] = {}
    for k, gradient in gradients.items():
        sources.setdefault(gradient.ref(), k)
    needs: dict[tf.Operation, set[int]] = {}
    written: dict[Any, set[int]] = {}  # what the value of a variable needs
    for op in ops:
        needs[op] = set().union(*(needs.get(before, ()) for before in op.control_inputs))
        for tensor in op.inputs:
            needs[op] |= needs.get(tensor.op, set()) | written.get(tensor.ref(), set())
            for owner in (sources.get(tensor.ref()), holds.get(tensor.op)):
                needs[op] |= set() if owner is None else {owner}
        for tensor in op.inputs:
            if tensor.dtype == tf.resource and op.type != "ReadVariableOp":
                written[tensor.ref()] = needs[op]
    owned: dict[int, list[tf.Operation]] = {}
    for op, numbers in needs.items():
        if len(numbers) == 1 and not numbers - gradients.keys():
            owned.setdefault(next(iter(numbers)), []).append(op)
    return owned


def _path(
    last: tf.Operation, place: Collection[tf.Operation], applied: Collection[tf.Operation]
) -> set[tf.Operation]:
    """The ops of the backward pass that serve one gradient alone."""
    path: set[tf.Operation] = set()
    waiting = [last]
    while waiting:
        op = waiting.pop()
        if all(u in path or u in applied for u in [*users(op), *op._control_outputs]):
            path.add(op)
            waiting += [before for before in takes(op) if before in place]
    return path


def _behind(
    tensors: Sequence[tf.Tensor],
    place: Mapping[tf.Operation, int],
    others: Collection[tf.Operation],
    last: int,
) -> list[tf.Operation]:
    """The ops that take these tensors to pass the error on, traced after the one of that number."""
    takers = (user for tensor in tensors for user in tensor.consumers())
    return [*{u: None for u in takers if place.get(u, -1) > last and u not in others}]

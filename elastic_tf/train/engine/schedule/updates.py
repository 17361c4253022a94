"""Each tensor updated as soon as its gradient exists, so that one gradient lives at a time.

Left to itself TensorFlow hands on the gradients of all tensors in one op, decays all weights before
the backward pass begins (while the forward pass still holds their old values, which makes a copy of
each), and passes the error back ahead of the weight gradients, which hold activations.

Here the ops of a tensor's update wait for its gradient alone, and the error is passed on after the
update. Where the error takes less memory than the gradient it is passed on before: the update is
then made in place, for nobody needs the old weights any more. Every new edge leads forward in one
order of all ops (that of tracing, in which a gradient's own ops stand right behind what they take),
so that there is no circle.

Source: Moon et al., NNTrainer (the order of a layer's gradient, its update and its derivative).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf.graph import captured, replace, takes, users
from elastic_tf.train.engine.schedule.backward import is_large, places, size, values


def update_early(
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

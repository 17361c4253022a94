"""Activations that wait in a file from the forward pass to the backward pass."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.engine.schedule.backward import size
from elastic_tf.engine.state import Step
from elastic_tf.graph import SHAPES, needed_by, nodes_of, replace, takes
from elastic_tf.memory.activations import values_of
from elastic_tf.memory.swap_file import SwapFile

# Smaller tensors stay: two calls of Python take longer than it takes to copy so much.
_AT_LEAST = 1 << 18  # bytes


@contextlib.contextmanager
def swapped(
    model: ElasticMixin, folder: str | Path | None = None, *, lookahead: int = 1
) -> Iterator[SwapFile]:
    """Train with activations in a file while they wait for their gradients.

    Inside this context `fit` and `train_on_batch` write each large tensor that the backward pass
    takes of the forward pass to a file, and read it back shortly before it is used. The weights are
    the same; bit for bit where ops are deterministic (`tf.config.experimental`). Whatever the plan
    leaves out is never kept, and so never swapped.

    A step that finds the disk full is finished in memory, then `fit` ends with an error: nothing is
    lost. The file has no name; a killed process leaves none behind.

    Args:
        model: compiled elastic model.
        folder: on a disk, with room for what a step keeps. None: where Python makes temporary
            files; on some systems that is memory.
        lookahead: how many uses ahead of the backward pass a tensor is read.

    Yields:
        The file; `nbytes` is its size.

    Raises:
        OSError: no file can be made in the folder; in `fit`, the disk is full.
        ValueError: the model runs eagerly, is compiled by XLA or with `keep`, or trains on several
            replicas.

    Source: Moon et al., NNTrainer, ICSE 2024, Sec. 4.3 (Proactive Swap). There weights are swapped
    too; variables of TensorFlow stay in memory.
    """
    arguments.elastic(model, compiled=True)
    arguments.count("lookahead", lookahead)
    replicas = model.distribute_strategy.num_replicas_in_sync
    if model.run_eagerly or model.jit_compile or replicas > 1:
        raise ValueError(
            "Only a graph that TensorFlow runs on one device can be swapped. Received: "
            f"run_eagerly={model.run_eagerly}, jit_compile={bool(model.jit_compile)}, "
            f"{replicas} replicas. Compile the model without them."
        )
    if model._elastic.keep is not None:
        raise ValueError(
            "Activations are swapped or computed again, not both. Received: a model compiled with "
            f"keep={model._elastic.keep}. Compile it without `keep`."
        )
    state, file = model._elastic, SwapFile(folder)
    before, state.swap = state.swap, Swap(file, lookahead)
    try:
        yield file
    finally:
        state.swap = before
        state.functions.clear()
        model.train_function = model._elastic.traceable = None
        file.close()


class Swap:
    """How traced steps use a swap file.

    Args:
        file: that they use.
        lookahead: as of `swapped`.
    """

    def __init__(self, file: SwapFile, lookahead: int) -> None:
        self._file, self._lookahead = file, lookahead

    def watching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A train function that raises an OSError after a step for which the disk was full."""

        def run(*args: Any) -> Any:
            logs = function(*args)
            failure, self._file.failure = self._file.failure, None
            if failure is not None:
                raise OSError(
                    failure.errno,
                    "The disk must have room for the activations of a step. Received: "
                    f"{failure} in '{self._file.folder}' after {self._file.nbytes} bytes. The step "
                    "was finished in memory: free some room, or choose another folder, and go on.",
                )
            return logs

        return run

    def enter(self, step: Step, gradients: Sequence[Any]) -> None:
        """Let the backward pass, traced a moment ago, take tensors from the file.

        With the tensors in the order of their first use by the backward pass, one is read when the
        pass arrives at that which is used `lookahead` before it. The forward pass waits where a
        second tensor would wait to be written.
        """
        if tf.executing_eagerly():
            return
        graph = step.loss.graph
        graph._elastic_swap_file = self._file  # the graph alone holds it, see `_calls`
        put, ask, take = _calls(self._file)
        order = {op: k for k, op in enumerate(graph.get_operations())}
        uses = _uses(graph, step, gradients)
        tensors = sorted(uses, key=lambda one: order[uses[one][0]])
        arrivals = [_arrival(uses[one][0], step.loss.op, order) for one in tensors]
        written: list[tuple[Any, Any]] = []
        for k, one in enumerate(tensors):
            if k < self._lookahead:
                continue  # it would be read at once
            tensor = one.deref()
            first = order[uses[one][0]]
            ahead = list(arrivals[k - self._lookahead])
            if k > self._lookahead:  # memory of this one is that of the one before
                done = uses[tensors[k - self._lookahead - 1]]
                ahead += [op for op in done if order[op] < first]
            ticket = put(tensor)
            written.append((tensor.op, ticket.op))
            with tf.control_dependencies(ahead):
                asked = ask(ticket)
            with tf.control_dependencies(arrivals[k]):
                found = take(asked, tensor.dtype)
            for one_of, shape in ((ticket, ()), (asked, ()), (found, tensor.shape)):
                one_of.set_shape(shape)
            replace(tensor, found, uses[one])
        written.sort(key=lambda one: order[one[0]])
        for (_, ticket), (maker, _) in zip(written, written[2:]):
            if all(tensor.op is not maker for tensor in ticket.inputs):
                maker._add_control_input(ticket)


def _calls(file: SwapFile) -> tuple[Callable[..., tf.Tensor], ...]:
    """The file's methods as ops.

    TensorFlow never forgets a function that it was given, which must not hold the file. The ops
    count as stateless: TensorFlow would run stateful ones one after the other, as they were traced.
    """
    known = weakref.ref(file)

    @tf.autograph.experimental.do_not_convert
    def put(array: np.ndarray) -> np.int64:
        return known().put(array)  # type: ignore[union-attr]

    @tf.autograph.experimental.do_not_convert
    def ask(ticket: np.int64) -> np.int64:
        return known().ask(ticket)  # type: ignore[union-attr]

    @tf.autograph.experimental.do_not_convert
    def take(ticket: np.int64) -> np.ndarray:
        return known().take(ticket)  # type: ignore[union-attr]

    return (
        lambda tensor: tf.numpy_function(put, [tensor], tf.int64, stateful=False),
        lambda ticket: tf.numpy_function(ask, [ticket], tf.int64, stateful=False),
        lambda ticket, dtype: tf.numpy_function(take, [ticket], dtype, stateful=False),
    )


def _uses(graph: Any, step: Step, gradients: Sequence[Any]) -> dict[Any, list[tf.Operation]]:
    """Large tensors of the forward pass -> the backward ops that take them."""
    ops = graph.get_operations()
    nodes = nodes_of(ops, SHAPES)
    ends = tf.nest.flatten([g for g in gradients if g is not None], expand_composites=True)
    values = values_of(nodes, tf.nest.flatten(step.x))
    needed = needed_by(nodes, [tensor.op for tensor in ends])
    count = ops.index(step.loss.op) + 1
    forward = {*ops[:count]} & values
    uses: dict[Any, list[tf.Operation]] = {}
    for op in ops[count:]:
        if op in needed and op.type not in SHAPES:
            for tensor in op.inputs:
                if tensor.op in forward and size(tensor) >= _AT_LEAST:
                    uses.setdefault(tensor.ref(), []).append(op)
    return uses


def _arrival(
    op: tf.Operation, loss: tf.Operation, order: dict[tf.Operation, int]
) -> list[tf.Operation]:
    """Ops after which the backward pass has arrived at `op`."""
    return [before for before in takes(op) if order[before] > order[loss]] or [loss]

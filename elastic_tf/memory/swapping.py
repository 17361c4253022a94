"""Activations that wait in a file from the forward pass to the backward pass."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.graph import replace, takes
from elastic_tf.memory.activations import crossings
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.schedule.backward import size
from elastic_tf.train.engine.state import Step

# Smaller tensors stay: two calls of Python take longer than it takes to copy so much.
_AT_LEAST = 1 << 18  # bytes
_ALIGNMENT = 64  # bytes; TensorFlow copies an array that begins elsewhere


@contextlib.contextmanager
def swapped(model: ElasticMixin, folder: str | Path | None = None) -> Iterator[SwapFile]:
    """Train with activations in a file while they wait for their gradients.

    Inside this context `fit` and `train_on_batch` write each large tensor that the backward pass
    takes of the forward pass to a file, and read it back one use before its own. The weights are
    the same; bit for bit where ops are deterministic (`tf.config.experimental`). Whatever the plan
    leaves out is never kept, and so never swapped.

    A step that finds the disk full is finished in memory, then `fit` ends with an error: nothing is
    lost. The file has no name; a killed process leaves none behind.

    Args:
        model: compiled elastic model.
        folder: on a disk, with room for what a step keeps. None: where Python makes temporary
            files; on some systems that is memory.

    Yields:
        The file; `nbytes` is its size.

    Raises:
        OSError: no file can be made in the folder; in `fit`, the disk is full.
        ValueError: the model runs eagerly, is compiled by XLA or with `keep`, or trains on several
            replicas.

    Source: Moon et al., NNTrainer, ICSE 2024, Sec. 4.3 (Proactive Swap). There weights are swapped
    too; variables of TensorFlow stay in memory.
    """
    state = arguments.elastic(model, compiled=True)._elastic
    replicas = model.distribute_strategy.num_replicas_in_sync
    if model.run_eagerly or model.jit_compile or replicas > 1:
        raise ValueError(
            "Only a graph that TensorFlow runs on one device can be swapped. Received: "
            f"run_eagerly={model.run_eagerly}, jit_compile={bool(model.jit_compile)}, "
            f"{replicas} replicas. Compile the model without them."
        )
    if state.keep is not None:
        raise ValueError(
            "Activations are swapped or computed again, not both. Received: a model compiled with "
            f"keep={state.keep}. Compile it without `keep`."
        )
    file = SwapFile(folder)
    before, state.swap = state.swap, file
    try:
        yield file
    finally:
        state.swap = before
        state.functions.clear()
        model.train_function = state.traceable = None
        file.close()


class SwapFile:
    """Arrays are put in, asked for ahead of time, and taken out once.

    The file has no name: it is gone when it is closed, and when the process ends in whatever way.
    A thread reads and writes it; it is not mapped into memory, for on a full disk a mapped page
    would kill the process. An array that cannot be written stays in memory. So does all that is put
    in after `close`.

    Args:
        folder: where the file is made. None: where Python makes temporary files.

    Attributes:
        nbytes: of the file so far.
        failure: why an array could not be written, if so.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.nbytes = 0
        self.failure: OSError | None = None
        self.folder = tempfile.gettempdir() if folder is None else folder
        self._file: Any = tempfile.TemporaryFile(dir=self.folder, buffering=0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="swap")
        self._tickets = itertools.count()
        self._last: Future[None] | None = None  # the write that was begun last
        self._read_ahead: dict[int, Future[np.ndarray]] = {}
        # of the thread alone
        self._places: dict[int, tuple[int, tuple[int, ...], Any]] = {}  # offset, shape, dtype
        self._free: dict[int, list[int]] = {}  # bytes -> offsets of that size
        self._unwritten: dict[int, np.ndarray] = {}

    def put(self, array: np.ndarray) -> np.int64:
        """Begin to write an array when the one before it is written; returns its ticket."""
        ticket = next(self._tickets)
        before, self._last = self._last, self._thread.submit(self._write, ticket, array)
        if before is not None:
            before.result()
        return np.int64(ticket)

    def ask(self, ticket: np.int64) -> np.int64:
        """Begin to read an array; returns its ticket."""
        self._read_ahead[int(ticket)] = self._thread.submit(self._read, int(ticket))
        return ticket

    def take(self, ticket: np.int64) -> np.ndarray:
        """An array that was asked for; an OSError if it cannot be read."""
        return self._read_ahead.pop(int(ticket)).result()

    def close(self) -> None:
        """Give the file back once what was begun is done."""
        self._thread.submit(self._file.close).result()

    def watching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A train function that raises an OSError after a step for which the disk was full."""

        def run(*args: Any) -> Any:
            logs = function(*args)
            failure, self.failure = self.failure, None
            if failure is not None:
                raise OSError(
                    failure.errno,
                    "The disk must have room for the activations of a step. Received: "
                    f"{failure} in '{self.folder}' after {self.nbytes} bytes. The step was "
                    "finished in memory: free some room, or choose another folder, and go on.",
                )
            return logs

        return run

    def enter(self, step: Step, gradients: Sequence[Any]) -> None:
        """Let the backward pass, traced a moment ago, take tensors from the file.

        With the tensors in the order of their first use by the backward pass, one is read when the
        pass arrives at the one before it. The forward pass waits where a second tensor would wait
        to be written.
        """
        if tf.executing_eagerly():
            return
        graph = step.loss.graph
        graph._elastic_swap_file = self  # the graph alone holds it, see `_op`
        put, ask, take = (_op(self, name) for name in ("put", "ask", "take"))
        order = {op: k for k, op in enumerate(graph.get_operations())}
        found = sorted(_uses(graph, step, gradients).items(), key=lambda one: order[one[1][0]])
        uses = [ops for _, ops in found]
        # after which the backward pass has arrived at a tensor's first use
        arrivals = [
            [before for before in takes(ops[0]) if order[before] > order[step.loss.op]]
            or [step.loss.op]
            for ops in uses
        ]
        written: list[tuple[Any, Any]] = []
        for k in range(1, len(found)):  # the first would be read at once
            tensor, ahead = found[k][0].deref(), arrivals[k - 1]
            if k > 1:  # memory of this one is that of the one before
                ahead = [*ahead, *(op for op in uses[k - 2] if order[op] < order[uses[k][0]])]
            ticket = put([tensor], tf.int64)
            written.append((tensor.op, ticket.op))
            with tf.control_dependencies(ahead):
                asked = ask([ticket], tf.int64)
            with tf.control_dependencies(arrivals[k]):
                back = take([asked], tensor.dtype)
            for one, shape in ((ticket, ()), (asked, ()), (back, tensor.shape)):
                one.set_shape(shape)
            replace(tensor, back, uses[k])
        written.sort(key=lambda one: order[one[0]])
        for (_, ticket), (maker, _) in zip(written, written[2:]):
            if all(tensor.op is not maker for tensor in ticket.inputs):
                maker._add_control_input(ticket)

    def _write(self, ticket: int, array: np.ndarray) -> None:
        try:
            places = self._free.get(array.nbytes)
            offset = places.pop() if places else self.nbytes
            self.nbytes = max(self.nbytes, offset + array.nbytes)
            self._file.seek(offset)
            rest = array.reshape(-1).view(np.uint8).data
            while rest:
                rest = rest[self._file.write(rest) :]
            self._places[ticket] = offset, array.shape, array.dtype
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            # a copy: TensorFlow may overwrite what it gets back, and arrays may share their memory
            self._unwritten[ticket] = array.copy()
            if isinstance(error, OSError):
                self.failure = error

    def _read(self, ticket: int) -> np.ndarray:
        if ticket in self._unwritten:
            return self._unwritten.pop(ticket)
        offset, shape, dtype = self._places.pop(ticket)
        size = math.prod(shape) * dtype.itemsize
        memory = np.empty(size + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        found = memory[start : start + size]
        self._file.seek(offset)
        rest = found.data
        while rest:
            count = self._file.readinto(rest)
            if not count:
                raise OSError(f"The swap file in '{self.folder}' ends too early.")
            rest = rest[count:]
        self._free.setdefault(size, []).append(offset)
        return found.view(dtype).reshape(shape)


def _op(file: SwapFile, name: str) -> Callable[..., Any]:
    """A method of the file as an op, which does not hold it: TensorFlow never forgets a function.

    Stateless, for TensorFlow would run stateful ones one after the other, as they were traced.
    """
    known = weakref.ref(file)
    run = tf.autograph.experimental.do_not_convert(lambda one: getattr(known(), name)(one))
    return functools.partial(tf.numpy_function, run, stateful=False)


def _uses(graph: Any, step: Step, gradients: Sequence[Any]) -> dict[Any, list[tf.Operation]]:
    """Large tensors of the forward pass -> the backward ops that take them."""
    ops, x = graph.get_operations(), tf.nest.flatten(step.x)
    ends = tf.nest.flatten([g for g in gradients if g is not None], expand_composites=True)
    backward = {*ops[ops.index(step.loss.op) + 1 :]}
    uses: dict[Any, list[tf.Operation]] = {}
    for tensor, op in crossings(ops, x, backward, ends):
        if size(tensor) >= _AT_LEAST:
            uses.setdefault(tensor.ref(), []).append(op)
    return uses

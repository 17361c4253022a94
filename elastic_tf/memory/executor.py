"""When TensorFlow's executor allocates and frees each tensor of a step.

An op runs once its inputs are there. A thread that ends one goes on with what became ready: cheap
ops in turn, else the last of the expensive ones; it puts the others at the front of its own row. A
thread without work takes from the front of its row, or from the end of another one's. An op's
inputs are freed when it ends; elementwise ops write over an input that nobody else will take. An
update of a variable that an op still reads makes a copy of it.

Source: TensorFlow 2.15, core/common_runtime/executor.cc and framework/op_kernel.cc.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from elastic_tf.memory.ops import Key, Work

_THREADS = 2  # that start ops, where nothing else is set on a machine of two cores

FOLDED = "FusedBatchNormV3 of a layer that is left out"
_SAME = frozenset(
    "EnsureShape ExpandDims Identity PreventGradient Reshape Squeeze StopGradient".split()
)
_IN_PLACE = frozenset(
    "Abs Add AddN AddV2 BiasAdd Cast DivNoNan Elu EluGrad Erf Exp Floor LeakyRelu LeakyReluGrad "
    "Log LogSoftmax Maximum Minimum Mul Neg Pow RealDiv Relu Relu6 Relu6Grad ReluGrad Rsqrt "
    "RsqrtGrad SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Softmax Softplus SoftplusGrad Sqrt "
    "Square SquaredDifference Sub Tanh TanhGrad Xdivy ZerosLike".split()
) | {FOLDED}
_CHEAP = frozenset({*_SAME, "NoOp", "Placeholder", "ReadVariableOp"})
_LEAST = 16 * 1024  # bytes below which an op counts as cheap
COPY = "/copy"  # behind the name of an update that copies a variable
# What TensorFlow's allocator hands out of what is asked for: it splits a piece only where half of
# it or more is left. Measured: 1.02 to 1.15 of the largest of some steps.
_PIECES = 1.15


class Tensor(NamedTuple):
    """Memory of a step, from the start of op `first` to the end of `last`."""

    name: str  #: of the op that allocates it, or of the variable
    #: "activation", "derivative", "gradient", "weight", "copy" of a weight that an op still reads
    #: while it is updated, "slots" or "label".
    kind: str
    bytes: int  #: size
    first: int  #: number of the op that begins to use it
    last: int  #: number of the op that uses it last


class Run(NamedTuple):
    """One run of a step."""

    order: list[str]  #: names of the ops as they start
    buffers: list[Tensor]  #: what was allocated, in that order, without its kind

    @property
    def peak(self) -> int:
        """The most bytes at a time."""
        return int(live_bytes(self.buffers).max(initial=0))

    @property
    def taken(self) -> float:
        """Bytes that the allocator hands out for `peak`."""
        return _PIECES * self.peak


def live_bytes(tensors: Sequence[Tensor]) -> np.ndarray:
    """Bytes that are in use at each op; int64."""
    change = np.zeros(2 + max((one.last for one in tensors), default=-1), np.int64)
    for one in tensors:
        change[one.first] += one.bytes
        change[one.last + 1] -= one.bytes
    return np.cumsum(change)[:-1]


def run(works: Mapping[str, Work], results: Sequence[Key]) -> Run:
    """Run the ops of a step in thought: start what can start, then end what ends first."""
    state = _Executor(works, results)
    idle, now = set(range(_THREADS)), 0.0
    under_way: list[tuple[float, int, int, Work]] = []
    while True:
        for thread in sorted(idle):
            work = state.next(thread)
            if work is not None:
                idle.discard(thread)
                state.start(work)
                heapq.heappush(under_way, (now + work.microseconds, len(state.order), thread, work))
        if not under_way:
            return Run(state.order, state.buffers())
        now, _, thread, work = heapq.heappop(under_way)
        state.end(work, thread)
        idle.add(thread)


@dataclasses.dataclass(eq=False)
class _Buffer:
    name: str  # of what allocated it
    size: int
    first: int  # number of the op that did
    uses: int = 1  # tensors in it
    last: int = -1  # number of the op that ended as it was freed


class _Executor:
    """What is where while a step runs."""

    def __init__(self, works: Mapping[str, Work], results: Sequence[Key]) -> None:
        self.works = works
        self.order: list[str] = []
        self.waits: dict[str, int] = {}
        self.then: dict[str, list[str]] = {name: [] for name in self.works}
        self.takers: Counter[Key] = Counter(results)
        for name, work in self.works.items():
            before = [one for one, _ in work.inputs] + [*work.controls]
            known = [one for one in before if one in self.works]
            self.waits[name] = len(known)
            for one in known:
                self.then[one].append(name)
            self.takers.update(work.inputs)
        self.inline = [deque[str]() for _ in range(_THREADS)]
        self.rows = [deque[str]() for _ in range(_THREADS)]
        for k, name in enumerate(name for name, count in self.waits.items() if not count):
            self.rows[k % _THREADS].append(name)
        self.made: list[_Buffer] = []
        self.holds: dict[Key, _Buffer] = {}  # where a tensor is
        self.reads: dict[Key, list[_Buffer]] = {}  # handle -> what was read

    def buffers(self) -> list[Tensor]:
        """What was allocated; what is not freed lives to the end."""
        end = max(len(self.order) - 1, 0)
        return [
            Tensor(one.name, "", one.size, one.first, end if one.last < 0 else one.last)
            for one in self.made
            if one.size
        ]

    def next(self, thread: int) -> Work | None:
        """What a thread starts."""
        own = self.inline[thread] or self.rows[thread]
        if own:
            return self.works[own.popleft()]
        others = [row for row in self.rows if row]
        return self.works[others[0].pop()] if others else None

    def start(self, work: Work) -> None:
        """Allocate what the op gives."""
        if work.type in _SAME:
            self._hold((work.name, 0), self.holds.get(work.inputs[0]))
        elif work.type == "ReadVariableOp":  # the variable's own memory
            read = self._allocate((work.name, 0), 0)
            self.reads.setdefault(work.inputs[0], []).append(read)
        elif work.type != "Placeholder":
            over: list[_Buffer] = []
            for port, size in enumerate(work.sizes):
                old = self._written_over(work, size, over)
                if old is None:
                    self._allocate((work.name, port), size)
                else:
                    over.append(old)
                    self._hold((work.name, port), old)
        if work.written > 0:
            still = [one for one in self.reads.pop(work.inputs[0], ()) if one.uses]
            if still:  # the old numbers stay until their last reader ends
                last = still[-1]
                last.name, last.size, last.first = work.name + COPY, work.written, len(self.order)
        self.order.append(work.name)

    def end(self, work: Work, thread: int) -> None:
        """Free what nobody will take, and start what became ready."""
        for key in work.inputs:
            self.takers[key] -= 1
        given = [(work.name, port) for port in range(len(work.sizes))]
        for key in dict.fromkeys((*work.inputs, *given)):
            buffer = None if self.takers[key] else self.holds.pop(key, None)
            if buffer is not None:
                buffer.uses -= 1
                if not buffer.uses:
                    buffer.last = len(self.order) - 1
        last = None
        for name in self.then[work.name]:
            self.waits[name] -= 1
            if self.waits[name]:
                continue
            after = self.works[name]
            if after.type in _CHEAP or max(after.taken, sum(after.sizes), after.written) < _LEAST:
                self.inline[thread].append(name)
                continue
            if last is not None:
                self.rows[thread].appendleft(last)
            last = name
        if last is not None:
            if self.inline[thread]:
                self.rows[thread].appendleft(last)
            else:
                self.inline[thread].append(last)

    def _allocate(self, key: Key, size: int) -> _Buffer:
        self.holds[key] = found = _Buffer(key[0], size, len(self.order))
        self.made.append(found)
        return found

    def _hold(self, key: Key, buffer: _Buffer | None) -> None:
        if buffer is not None:
            self.holds[key] = buffer
            buffer.uses += 1

    def _written_over(self, work: Work, size: int, over: list[_Buffer]) -> _Buffer | None:
        """An input that the op can write over."""
        for key in work.inputs if work.type in _IN_PLACE else ():
            found = self.holds.get(key)
            if found is not None and found not in over and found.size == size:
                if found.uses == 1 == self.takers[key]:
                    return found
        return None

"""What the TensorFlow profiler tells of a step: which nodes of the executed graph ran, how long.

The graph is the one after TensorFlow's own optimisation (fused ops, inlined functions, lowered
loops), so the names of its nodes are those of the profiler's events, written as an XSpace.

An op event is named `op name:op type`. Ops inside a function that TensorFlow did not inline (the
loops of LSTM and GRU layers) bear names of that function's own; they are counted for the node that
called it. Which call a run of ops belongs to is told by the executor's own events: every run has an
id, and a call starts one right after `ExecutorState::ProcessAsync::Start`.

On a GPU such an event is the launch of an op, on the host. What it launched stands on planes of the
devices, a line for each stream: an event bears the name of its kernel, and its statistic `tf_op`
the op. Source: TensorFlow, xplane_schema.cc and cupti_collector.cc; six traces of an H100 agree.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf.graph import Node
from elastic_tf.stack import xplane_pb2

_OP = re.compile(r"[^:\s]+:\w+")
_CALL = re.compile(r"Call|While|If|Case|For")
_RUN = "ExecutorState::Process"
_START = "ExecutorState::ProcessAsync::Start"
_PICOSECONDS = 1e6  # in a microsecond
_DEVICE = "/device:GPU:"
_STREAM = "Stream #"  # other lines of a device sum streams up
_OP_OF_KERNEL = "tf_op"


@dataclass(frozen=True)
class StepTrace:
    """One traced training step; times are microseconds a step."""

    nodes: dict[str, Node]  # the executed graph
    # For each tensor, the nodes that return its gradient; none where the loss leaves it out.
    gradients: tuple[tuple[str, ...], ...]
    results: tuple[str, ...]  # the nodes that return the loss and the logs
    handles: dict[str, int]  # node that holds a variable -> its tensor, or -1 for another variable
    # Each node's share of the clock, where it has an event.
    times: dict[str, float] = field(default_factory=dict)
    # Of op events that belong to no node. What ran in half of the steps or fewer is not the step's:
    # Python may free the data of others meanwhile.
    time_unmatched: float = 0.0
    # Whether the times are those of kernels on a GPU, not of ops on the host that launch them.
    on_device: bool = False

    def timed(self, run: Callable[[], Any], repeats: int) -> StepTrace:
        """The same trace with the time of each op: medians over `repeats` runs of the step."""
        names, spans, on_device = events(run, repeats)
        belongs = np.array([name in self.nodes for name in names], bool)
        foreign, often = np.unique(names[~belongs], return_counts=True)
        unmatched = np.isin(names, foreign[often > repeats / 2])
        lengths = (spans[:, 1] - spans[:, 0])[unmatched]
        return replace(
            self,
            times=per_step(names[belongs], wall_clock_shares(spans[belongs]), repeats),
            on_device=on_device,
            time_unmatched=sum(per_step(names[unmatched], lengths, repeats).values()),
        )

    def scaled_to(self, total: float) -> StepTrace:
        """The same trace with op times that add up to `total`."""
        scale = total / sum(self.times.values())
        return replace(self, times={name: time * scale for name, time in self.times.items()})


def events(run: Callable[[], Any], repeats: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Names, start and end in microseconds of all op events; whether they are a GPU's kernels."""
    with tempfile.TemporaryDirectory(prefix="elastic_tf_") as folder:
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=1
        )
        tf.profiler.experimental.start(folder, options=options)
        try:
            for _ in range(repeats):
                run()
        finally:
            tf.profiler.experimental.stop()
        spaces = [
            xplane_pb2.XSpace.FromString(path.read_bytes())
            for path in Path(folder).rglob("*.xplane.pb")
        ]
    kernels = [event for space in spaces for event in kernel_events(space)]
    found = kernels or [event for space in spaces for event in op_events(space)]
    names = np.array([name for name, *_ in found], object)
    spans = np.array([span for _, *span in found], np.float64).reshape(-1, 2)
    return names, spans, bool(kernels)


def wall_clock_shares(spans: np.ndarray) -> np.ndarray:
    """Share of the wall clock of each event: 1 / n of the time in which n are under way at once.

    The shares, of shape (E,), add up to the time in which anything ran. `spans` are start and end
    of each event, of shape (E, 2).
    """
    if not len(spans):
        return np.zeros(0)
    times = spans.ravel()
    order = np.argsort(times, kind="stable")
    active = np.cumsum(np.where(order % 2 == 0, 1, -1))[:-1]
    steps = np.diff(times[order]) / np.maximum(active, 1) * (active > 0)
    passed = np.empty(len(times))
    passed[order] = np.concatenate([[0.0], np.cumsum(steps)])
    return passed[1::2] - passed[0::2]


def per_step(names: np.ndarray, values: np.ndarray, repeats: int) -> dict[str, float]:
    """Value of each node in a step: the median of its events, times how often it ran."""
    collected: dict[str, list[float]] = {}
    for name, value in zip(names, values):
        collected.setdefault(name, []).append(value)
    return {
        name: statistics.median(parts) * len(parts) / repeats for name, parts in collected.items()
    }


class _Event(NamedTuple):
    name: str
    start: float
    end: float
    stats: dict[str, Any]


_Call = tuple[str, int]  # a node that ran a function, and the run it stood in itself


def kernel_events(space: Any) -> list[tuple[str, float, float]]:
    """The kernels and copies that ran on GPUs: op, start and end in microseconds.

    The op is the node of the graph, or what TensorFlow calls the kernel where it tells no op.
    """
    found = []
    for plane in space.planes:
        if plane.name.startswith(_DEVICE):
            names = {key: value.name for key, value in plane.event_metadata.items()}
            for line in plane.lines:
                for event in line.events if line.name.startswith(_STREAM) else ():
                    op = str(_stats(plane, event).get(_OP_OF_KERNEL, names[event.metadata_id]))
                    found.append((op.partition(":")[0], *_span(line, event)))
    return found


def op_events(space: Any) -> Iterator[tuple[str, float, float]]:
    """The op events of the host: node of the outermost graph, start and end in microseconds."""
    ops: list[tuple[_Event, int | None]] = []
    calls: list[tuple[float, _Call]] = []
    first_seen: dict[int, float] = {}
    for plane in space.planes:
        for line in _lines(plane) if not plane.name.startswith(_DEVICE) else ():
            open_runs: list[_Event] = []
            for event in line:
                while open_runs and open_runs[-1].end < event.end:
                    open_runs.pop()
                run = open_runs[-1].stats["id"] if open_runs else None
                if event.name == _RUN and "id" in event.stats:
                    open_runs.append(event)
                    run = event.stats["id"]
                    first_seen[run] = min(first_seen.get(run, event.start), event.start)
                elif event.name == _START and _CALL.search(str(event.stats.get("kernel_type"))):
                    call = str(event.stats.get("name")), event.stats.get("step_id", 0)
                    calls.append((event.start, call))
                elif _OP.fullmatch(event.name):
                    ops.append((event, run))
    callers = _callers(first_seen, sorted(calls))
    for event, run in ops:
        name = event.name.partition(":")[0]
        while run in callers:
            name, run = callers[run]
        yield name, event.start, event.end


def _callers(first_seen: dict[int, float], calls: list[tuple[float, _Call]]) -> dict[int, _Call]:
    """The call that each run of a function came from: the earliest that no earlier run took."""
    callers: dict[int, _Call] = {}
    runs = sorted((start, run) for run, start in first_seen.items())
    for called, call in calls:
        for index, (start, run) in enumerate(runs):
            if start >= called and run != call[1]:
                callers[run] = call
                del runs[index]
                break
    return callers


def _lines(plane: Any) -> Iterator[list[_Event]]:
    """The events of each line, outer before inner."""
    names = {key: value.name for key, value in plane.event_metadata.items()}
    for line in plane.lines:
        events = []
        for event in line.events:
            name = names[event.metadata_id]
            told_by_stats = name in (_RUN, _START)
            if told_by_stats or _OP.fullmatch(name):
                stats = _stats(plane, event) if told_by_stats else {}
                events.append(_Event(name, *_span(line, event), stats))
        yield sorted(events, key=lambda event: (event.start, -event.end))


def _span(line: Any, event: Any) -> tuple[float, float]:
    start = line.timestamp_ns * 1e-3 + event.offset_ps / _PICOSECONDS
    return start, start + event.duration_ps / _PICOSECONDS


def _stats(plane: Any, event: Any) -> dict[str, Any]:
    """The statistics of an event by name."""
    stats = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind) if kind else None
        if kind == "ref_value":
            value = plane.stat_metadata[value].name
        stats[plane.stat_metadata[stat.metadata_id].name] = value
    return stats

"""Op times out of what the TensorFlow profiler writes (an XSpace).

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
from collections.abc import Iterator
from typing import Any, NamedTuple

_OP = re.compile(r"[^:\s]+:\w+")
_CALL = re.compile(r"Call|While|If|Case|For")
_RUN = "ExecutorState::Process"
_START = "ExecutorState::ProcessAsync::Start"
_PICOSECONDS = 1e6  # in a microsecond
_DEVICE = "/device:GPU:"
_STREAM = "Stream #"  # other lines of a device sum streams up
_OP_OF_KERNEL = "tf_op"


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

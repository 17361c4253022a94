"""What step times depend on, and what is measured beside them: cores, oneDNN, load, sensors."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic_tf.commands.checking.finding import BROKEN, NOTE, OK, Finding
from elastic_tf.costs import energy
from elastic_tf.timing import runtime

_GIB = 2**30
# A process that trains holds 0.7 GiB with the smallest networks (experiments/results/memory.json).
_LEAST_MEMORY, _ENOUGH_MEMORY = 0.7, 2.0  # GiB
_BUSY = 0.25  # processes that run, for each core, from which on times are not to be trusted
_COARSE = 1e-5  # seconds; steps of small networks take milliseconds
_READINGS = 1000


def cores() -> Finding:
    """Cores that may be used, and the threads that are asked for."""
    usable, present = runtime.usable_cores(), os.cpu_count() or 1
    asked = runtime.RuntimeSettings.of_environment()
    found = f"{usable} of {present} usable; threads: {asked}"
    if max(asked.inter_op_threads, asked.intra_op_threads) > usable:
        names = "TF_NUM_INTEROP_THREADS and TF_NUM_INTRAOP_THREADS"
        mend = f"Unset {names}, or set them to {usable} at most."
        return Finding("cores", NOTE, found, mend)
    if usable < present:
        mend = "This process is bound to some of them (taskset, a container): profile and train so."
        return Finding("cores", NOTE, found, mend)
    return Finding("cores", OK, found)


def onednn(device: dict[str, Any], cpuinfo: str | Path = "/proc/cpuinfo") -> Finding:
    """Whether oneDNN's kernels are on, against what the processor offers them.

    TensorFlow 2.15 leaves them off on x86 processors without AVX-512. On such a one they halved a
    ResNet50's training step and left MobileNetV2's as it was.

    Args:
        device: what `describe_device` said.
        cpuinfo: Linux's description of the processor.
    """
    try:
        text = Path(cpuinfo).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    # processors of other kinds have no flags there
    has = "unknown" if "flags" not in text else "yes" if "avx512f" in text else "no"
    found = f"{'on' if device['onednn'] else 'off'}; the processor's AVX-512: {has}"
    if device["onednn"] or device["kind"] == "gpu":
        return Finding("oneDNN", OK, found)
    mend = (
        "It may halve a step: the command profile tries both and train uses the better one. By "
        "hand: TF_ENABLE_ONEDNN_OPTS=1."
    )
    return Finding("oneDNN", NOTE, found, mend)


def load() -> Finding:
    """Processes that ran in the last minute."""
    try:
        running = os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows has none
        return Finding("load", OK, "not known on this system")
    found = f"{running:.2f} processes in the last minute"
    if running > _BUSY * runtime.usable_cores():
        mend = (
            "Times measured then are not to be trusted: wait a minute after an installation, and "
            "measure again when nothing else runs."
        )
        return Finding("load", NOTE, found, mend)
    return Finding("load", OK, found)


def doubt_of(load: Finding) -> str:
    """A line for tables of times that were measured under that load; empty where it was light."""
    if load.state != NOTE:
        return ""
    return f"Note: {load.found} before the start, an installation perhaps. {load.mend}\n"


def clock(now: Callable[[], float] = time.perf_counter) -> Finding:
    """The smallest step that the clock behind all times makes."""
    readings = [now() for _ in range(_READINGS)]
    steps = [b - a for a, b in zip(readings, readings[1:]) if b > a]
    finest = min(steps, default=float("inf"))
    if finest > _COARSE:
        found = "stands still" if not steps else f"{1e6 * finest:.0f} microseconds"
        mend = "Times of small networks will be rough: use larger batches when profiling."
        return Finding("clock", NOTE, found, mend)
    return Finding("clock", OK, f"{1e6 * finest:.2f} microseconds between two readings")


def sensor() -> Finding:
    """Whether the machine tells the energy that it uses."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = energy.find_sensor()
    if found is not None:
        return Finding("energy", OK, found.name)
    if said:
        return Finding("energy", NOTE, "a sensor that cannot be read", str(said[0].message))
    return Finding("energy", NOTE, "no sensor: results will say so instead of joules")


def memory(meminfo: str | Path = "/proc/meminfo") -> Finding:
    """Memory that is free for a training."""
    try:
        lines = Path(meminfo).read_text(encoding="utf-8").splitlines()
        kib = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
        available, total = (kib[name] * 1024 / _GIB for name in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError, IndexError):
        return Finding("memory", OK, "not known on this system")
    found = f"{available:.1f} of {total:.1f} GiB free"
    mend = "End other programs, add swap, or train a smaller model with smaller batches."
    if available < _ENOUGH_MEMORY:
        return Finding("memory", BROKEN if available < _LEAST_MEMORY else NOTE, found, mend)
    return Finding("memory", OK, found)

"""Check the installation and the machine, and say what to fix.

Example::

    python -m elastic_tf doctor --out runs

"ok" needs nothing; "note" trains, but something could be better; "broken" cannot train. The exit
code is 1 if something is broken, else 0.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement

from elastic_tf.commands.commandline import option, parse, typed
from elastic_tf.files.table import format_table
from elastic_tf.timing import runtime

OK, NOTE, BROKEN = "ok", "note", "broken"
_GIB = 2**30
# A process that trains holds 0.7 GiB with the smallest networks (experiments/results/memory.json).
_LEAST_MEMORY, _ENOUGH_MEMORY = 0.7, 2.0  # GiB
# A run keeps weights and, until it ends, a backup of weights and slots: 2 GB for VGG16 with Adam.
_LEAST_DISK, _ENOUGH_DISK = 0.1, 2.0  # GiB
_BUSY = 0.25  # processes that run, for each core, from which on times are not to be trusted
_SECONDS = 600  # for TensorFlow to start and to train a step, on a small board with a slow disk
# In a process of its own: a TensorFlow that does not fit the processor ends its process.
_STEP = """
import json, numpy as np, elastic_tf as et, tensorflow as tf
from elastic_tf.timing.runtime import describe_device
model = et.ElasticModel.from_model(
    tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(2,)), tf.keras.layers.Dense(1)]))
model.compile("sgd", "mse")
model.set_mask(np.array([False, False, True, True]))
model.fit(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32), batch_size=4, verbose=0)
print(json.dumps(describe_device()))
"""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to check."""

    out: Path = option(Path("runs"), help="directory where runs will be written")


class Finding(NamedTuple):
    """The answer of one check: `OK`, `NOTE` or `BROKEN`, and what to do about it."""

    check: str
    state: str
    found: str
    fix: str = ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Check, print, and end with exit code 1 where training is impossible."""
    settings = parse(Settings, __doc__ or "", arguments)
    load = machine_load()  # before the checks put a load on the machine themselves
    started, device = tensorflow()
    findings = [packages(), started, cores(), load, memory(), disk(settings.out)]
    if device is not None:
        findings.append(onednn(device))
    print(report(findings))
    if any(finding.state == BROKEN for finding in findings):
        raise SystemExit(1)


def report(findings: Sequence[Finding]) -> str:
    """A table, what to fix below it, and the verdict."""
    table = format_table([one._asdict() for one in findings], ("check", "state", "found"))
    lines = [f"{finding.check}: {finding.fix}" for finding in findings if finding.fix]
    broken = ", ".join(finding.check for finding in findings if finding.state == BROKEN)
    last = f"It cannot train before this is fixed: {broken}." if broken else "Ready to train."
    return "\n".join([table, "", *lines, last])


def packages() -> Finding:
    """The installed packages against the versions that are asked for."""
    try:
        asked = [Requirement(text) for text in metadata.requires("elastic_tf") or ()]
    except metadata.PackageNotFoundError:
        fix = f"{typed(['-m', 'pip', 'install', '.'])} in the checkout installs what is needed."
        return Finding("packages", NOTE, "elastic_tf runs from a folder, not installed", fix)
    wrong = []
    # those of the extras have a marker that is false without them
    asked = [one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]
    for one in asked:
        try:
            if one.specifier.contains(metadata.version(one.name), prereleases=True):
                continue
            wrong.append(f"{one.name} {metadata.version(one.name)}, asked for {one.specifier}")
        except metadata.PackageNotFoundError:
            wrong.append(f"{one.name} is not installed")
    if wrong:
        fix = typed(["-m", "pip", "install", *(f"{one.name}{one.specifier}" for one in asked)])
        return Finding("packages", BROKEN, "; ".join(wrong), fix)
    return Finding("packages", OK, f"all {len(asked)} are there in the versions asked for")


def tensorflow() -> tuple[Finding, dict[str, Any] | None]:
    """Train a step in a child process; also what `describe_device` says there."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _STEP], capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        fix = "Look at the load of the machine and at its disk, and try again."
        return Finding("TensorFlow", BROKEN, f"no step in {_SECONDS} s", fix), None
    if done.returncode == -signal.SIGILL:
        fix = "Take a TensorFlow built for this processor; those of PyPI for x86 need AVX."
        return Finding("TensorFlow", BROKEN, "ended by an illegal instruction", fix), None
    if done.returncode:
        last = (done.stderr.strip() or f"ended with code {done.returncode}").splitlines()[-1]
        return Finding("TensorFlow", BROKEN, last, "Install the packages anew."), None
    device = json.loads(done.stdout.splitlines()[-1])
    trains = f"{device['tensorflow']} trains on {device['name']} ({device['kind']})"
    return Finding("TensorFlow", OK, trains), device


def cores() -> Finding:
    """Cores that may be used, and the threads that are asked for."""
    usable, asked = runtime.usable_cores(), runtime.RuntimeSettings.of_environment()
    found = f"{usable} of {os.cpu_count()} usable; threads: {asked}"
    if max(asked.inter_op_threads, asked.intra_op_threads) > usable:
        names = "TF_NUM_INTEROP_THREADS and TF_NUM_INTRAOP_THREADS"
        return Finding("cores", NOTE, found, f"Unset {names}, or set them to {usable} at most.")
    return Finding("cores", OK, found)


def onednn(device: dict[str, Any]) -> Finding:
    """Whether oneDNN's kernels are on; without AVX-512 TensorFlow 2.15 leaves them off."""
    if device["onednn"] or device["kind"] == "gpu":
        return Finding("oneDNN", OK, "on" if device["onednn"] else "not needed on a GPU")
    fix = "It may halve a step: the command profile tries both, and train uses the better one."
    return Finding("oneDNN", NOTE, "off", fix)


def machine_load() -> Finding:
    """Processes that ran in the last minute."""
    try:
        running = os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows has none
        return Finding("load", OK, "not known on this system")
    found = f"{running:.2f} processes in the last minute"
    if running > _BUSY * runtime.usable_cores():
        return Finding("load", NOTE, found, "Measure times when nothing else runs.")
    return Finding("load", OK, found)


def memory() -> Finding:
    """Memory that is free for a training."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable")) * 1024 / _GIB
    except (OSError, StopIteration):
        return Finding("memory", OK, "not known on this system")
    fix = "End other programs, add swap, or train a smaller model with smaller batches."
    return _enough("memory", free, _LEAST_MEMORY, _ENOUGH_MEMORY, fix)


def disk(out: Path) -> Finding:
    """Whether runs can be written below `out`, and room for them; leaves nothing there."""
    whole = out.absolute()
    place = next(one for one in (whole, *whole.parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        fix = "Choose another directory with --out, or let this user write there."
        return Finding("disk", BROKEN, f"{out}: {error.strerror}", fix)
    free = shutil.disk_usage(place).free / _GIB
    return _enough("disk", free, _LEAST_DISK, _ENOUGH_DISK, "Make room, or choose another --out.")


def _enough(check: str, free: float, least: float, enough: float, fix: str) -> Finding:
    state = BROKEN if free < least else NOTE if free < enough else OK
    return Finding(check, state, f"{free:.1f} GiB free", "" if state == OK else fix)

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
from pathlib import Path
from typing import Any, NamedTuple

from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.files.arrays import container_memory
from elastic_tf.files.table import format_table

OK, NOTE, BROKEN = "ok", "note", "broken"
_GIB = 2**30
# GiB of memory and of disk. A process that trains holds 0.7 with the smallest networks
# (experiments/results/memory.json). A run keeps weights and, until it ends, a backup of weights and
# slots: 2 for VGG16 with Adam.
_ENOUGH = 2.0
_SECONDS = 150  # for TensorFlow to start and to train a step: ten times what 2 slow cores take
# In a process of its own: a TensorFlow that does not fit the processor ends its process.
_STEP = """
import json, numpy as np, elastic_tf as et, tensorflow as tf
from elastic_tf.timing.runtime import describe_device
of = tf.keras.layers
model = tf.keras.Sequential([of.Input((2,)), of.Dense(3), of.Dense(1)])
model = et.ElasticModel.from_model(model)
model.compile("sgd", "mse")
model.set_mask(np.array([False, False, True, True]))
model.fit(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32), batch_size=4, verbose=0)
built, of = tf.sysconfig.get_build_info(), tf.config.experimental
gpus = tf.config.list_physical_devices("GPU")
print(json.dumps({
    **describe_device(),
    "version": tf.__version__,
    "for": [f"{kind} {built[key]}" for kind, key in
            (("CUDA", "cuda_version"), ("cuDNN", "cudnn_version")) if key in built]
           + ["ROCm"] * bool(built.get("is_rocm_build")),
    "gpus": [of.get_device_details(x).get("device_name", x.name) for x in gpus],
    "grows": [of.get_memory_growth(x) for x in gpus],
}))
"""
_GROW = "TF_FORCE_GPU_ALLOW_GROWTH"  # set to true: memory is taken as it is needed


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
    findings = [packages(), *tensorflow(), memory(), disk(settings.out)]
    print(format_table([one._asdict() for one in findings], ("check", "state", "found")) + "\n")
    for one in findings:
        if one.fix:
            print(f"{one.check}: {one.fix}")
    if broken := ", ".join(one.check for one in findings if one.state == BROKEN):
        print(f"It cannot train before this is fixed: {broken}.")
        raise SystemExit(1)
    print("Ready to train.")


def packages() -> Finding:
    """The installed packages against the versions that are asked for, by pip."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    lines = [one.replace("_", "-") for one in done.stdout.splitlines()]
    if wrong := " ".join(one for one in lines if one.startswith("elastic-tf ")):
        fix = f"{sys.executable} -m pip install . in the checkout installs what is needed."
        return Finding("packages", BROKEN, wrong, fix)
    return Finding("packages", OK, "nothing that it asks for is missing, or of another version")


def tensorflow() -> list[Finding]:
    """Train a step in a child process, which also tells of GPUs."""
    words, check = [sys.executable, "-c", _STEP], "TensorFlow"
    fix = "Look at memory and the limits of this shell, ulimit -a, or install the packages anew."
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return [Finding(check, BROKEN, f"no step in {_SECONDS} s", fix)]
    if done.returncode == 0:
        told = json.loads(done.stdout.splitlines()[-1])
        trains = f"{told['tensorflow']} trains on {told['name']} ({told['kind']})"
        return [Finding(check, OK, trains), gpu(told)]
    last = (done.stderr.strip() or f"ended with code {done.returncode}").splitlines()[-1]
    if done.returncode == -signal.SIGILL:
        last = "ended by an illegal instruction"
        fix = "Take a TensorFlow built for this processor; those of PyPI for x86 need AVX."
    return [Finding(check, BROKEN, last, fix)]


def gpu(told: dict[str, Any]) -> Finding:
    """The GPUs that TensorFlow sees, or why it sees none where a driver is installed."""
    built = f"TensorFlow is built for {', '.join(told['for']) or 'processors alone'}"
    if told["gpus"]:
        found = f"{', '.join(told['gpus'])}; {built}"
        if all(told["grows"]) or os.environ.get(_GROW) == "true":
            return Finding("GPU", OK, found)
        fix = f"TensorFlow takes nearly all of a GPU's memory. {_GROW}=true leaves the rest."
        return Finding("GPU", NOTE, found, fix)
    if shutil.which("nvidia-smi") is None:
        return Finding("GPU", OK, "none: it trains on the processor")
    fix = (
        "See that nvidia-smi lists the GPU and CUDA_VISIBLE_DEVICES does not hide it; for the "
        f"libraries of CUDA: pip install 'tensorflow[and-cuda]=={told['version']}'."
    )
    return Finding("GPU", NOTE, f"a driver is here, but TensorFlow sees no GPU; {built}", fix)


def memory() -> Finding:
    """Memory that is free for a training, or less where a container leaves less."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable")) * 1024
    except (OSError, StopIteration):
        return Finding("memory", OK, "not known on this system")
    container = container_memory()
    if container < free:
        fix = "This container allows no more. Raise the memory limit of its control group."
        return _room("memory", container / _GIB, fix)
    fix = "End other programs, add swap, or train a smaller model with smaller batches."
    return _room("memory", free / _GIB, fix)


def disk(out: Path) -> Finding:
    """Whether runs can be written below `out`, and room for them; leaves nothing there."""
    whole = out.absolute()
    place = next(one for one in (whole, *whole.parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            free = shutil.disk_usage(place).free / _GIB
    except OSError as error:
        fix = "Choose another directory with --out, or let this user write there."
        return Finding("disk", BROKEN, f"{out}: {error.strerror}", fix)
    return _room("disk", free, "Make room, or choose another --out.")


def _room(check: str, free: float, fix: str) -> Finding:
    found = f"{free:.1f} GiB free"
    return Finding(check, OK, found) if free >= _ENOUGH else Finding(check, NOTE, found, fix)

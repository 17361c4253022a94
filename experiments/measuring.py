"""What the parts of bench.py share: networks and noise, plans, steps in turn, processes, memory.

    python experiments/measuring.py MODULE FUNCTION ARGUMENTS

calls a function with arguments in JSON and prints what it returns likewise; see `apart`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf

from elastic_tf.app.commands.training import harness
from elastic_tf.files.json_form import to_json
from elastic_tf.files.table import Column
from elastic_tf.timing.stopwatch import time_anew
from elastic_tf.timing.trace import StepFunction
from elastic_tf.train.inputs.batches import as_batch

# name, width multiplier, input size in pixels
MODELS = (
    ("resnet50", 1.0, 128),
    ("vgg16", 1.0, 128),
    ("mobilenet_v2", 1.0, 128),
    ("vit_ti16", 1.0, 96),
    ("mobilenet", 0.75, 160),
)
DEVICE = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
BATCH, CLASSES = 64 if DEVICE == "GPU:0" else 4, 40
MIB = 2**20
# Pre-trained weights and photographs, where there are any.
ASSETS = Path(
    os.environ.get("ELASTIC_TF_ASSETS", Path(__file__).resolve().parents[2] / "shared" / "assets")
)
Batch = tuple[np.ndarray, np.ndarray]


def fresh(
    name: str,
    size: int,
    *,
    alpha: float = 1.0,
    classes: int = CLASSES,
    optimizer: str = "sgdw",
) -> et.ElasticModel:
    """A network of the zoo with random weights, the same each time, compiled."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(0)
    network = et.zoo.build(name, classes=classes, input_size=size, alpha=alpha, weights=None)
    return harness.compiled(network, optimizer, 1e-4)


def noise(size: int, batch: int = BATCH, *, classes: int = CLASSES, seed: int = 0) -> Batch:
    """A batch for such a network."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 255, (batch, size, size, 3)).astype(np.float32)
    return x, rng.integers(0, classes, batch)


def columns(words: str) -> tuple[Column, ...]:
    """Columns of a table from words: each a key and the format of its numbers."""
    parts = (word.partition(":") for word in words.split())
    return tuple(Column(key, key.replace("_", " "), form) for key, _, form in parts)


def random_mask(rng: np.random.Generator, count: int) -> np.ndarray:
    """Depth uniform, density 0.1 to 1."""
    deepest, density = rng.integers(count), rng.uniform(0.1, 1.0)
    mask = (np.arange(count) >= deepest) & (rng.random(count) < density)
    mask[deepest] = True
    return mask


def measure_ratios(
    model: et.ElasticModel, batch: tuple[Any, Any], plans: Sequence[Any], *, repeats: int
) -> list[float]:
    """Step time under each plan / full step time, medians of `repeats` pairs in turn."""
    data = as_batch(*batch)
    et.optimizers.build(model.optimizer, model.trainable_variables)
    full = StepFunction(model, np.ones(len(model.tensors), bool))
    ratios = []
    for plan in plans:
        steps = time_anew((full, StepFunction(model, plan)), data, repeats=repeats)
        ratios.append(float(np.median(steps[:, 1] / steps[:, 0])))
    return ratios


class StepTimes(tf.keras.callbacks.Callback):
    """Seconds of each step of a `fit`, by the clock."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._started)


def apart(function: Callable[..., Any], *arguments: Any, **environment: str) -> Any:
    """What a function of a part returns in a process of its own."""
    module = Path(sys.modules[function.__module__].__file__ or "").stem
    command = [sys.executable, __file__, module, function.__name__, json.dumps(arguments)]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **paths, **environment}
    )
    if run.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def resident_bytes() -> int:
    """Resident memory of this process, without garbage; Linux only."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Largest resident memory since it was last set back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kibibytes = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    return 1024 * int(kibibytes)


def allocated_bytes(what: str) -> int:
    """Of TensorFlow's allocator: "current" or "peak"."""
    return tf.config.experimental.get_memory_info(DEVICE)[what]


def peak_of_steps(model: et.ElasticModel, batch: Batch, steps: int = 4) -> dict[str, float]:
    """MiB that training steps take at most beside weights, slots and the batch."""
    et.optimizers.build(model.optimizer, model.trainable_variables)
    batches = iter(tf.data.Dataset.from_tensors(batch).repeat())
    step = model.make_train_function()
    model.train_tf_function.get_concrete_function(batches)  # tracing is no part of it
    resident, allocated = resident_bytes(), allocated_bytes("current")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    tf.config.experimental.reset_memory_stats(DEVICE)
    for _ in range(steps):
        step(batches)
    return {
        "resident": (peak_bytes() - resident) / MIB,
        "allocated": (allocated_bytes("peak") - allocated) / MIB,
    }


if __name__ == "__main__":
    found = getattr(import_module(sys.argv[1]), sys.argv[2])(*json.loads(sys.argv[3]))
    print(json.dumps(to_json(found)))

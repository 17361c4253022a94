"""Swapped activations: memory and time of steps with and without.

Peaks are those of a process of its own each: TensorFlow's allocator gives nothing back. The C
library gives large buffers back at once (MALLOC_MMAP_THRESHOLD_), those of NumPy among them, which
count as resident memory alone. Times are taken in turn in one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf
from bench_memory import MEBIBYTE, peak_bytes, prepared, resident_bytes
from related import nntrainer

from elastic_tf.files.table import Column, format_table

CASES = (("vgg16", 32, 64), ("mobilenet_v2", 128, 16), ("resnet50", 128, 16))  # size, batch
PAIRS, WARM_UP, STEPS = 12, 2, 4


def main(names: list[str] | None = None) -> dict[str, Any]:
    """Run all cases, or those of some models; print a table."""
    rows = {}
    for case in CASES:
        if names is None or case[0] in names:
            plain, swapped = child("peak", *case, "plain"), child("peak", *case, "swapped")
            rows[case[0]] = {
                **dict(zip(("model", "input_size", "batch_size"), case)),
                **child("planned", *case),
                **{key: plain[key] for key in ("resident", "allocated")},
                **{f"{key}_swapped": value for key, value in swapped.items()},
                **child("time", *case),
            }
    print(f"Steps with and without swapped activations, medians of {PAIRS} pairs, MiB and s:")
    print(format_table(list(rows.values()), COLUMNS))
    return rows


def child(kind: str, *arguments: Any) -> dict[str, Any]:
    """What that case prints in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), kind, *map(str, arguments)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=1200, env=environment
    )
    if run.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def planned(name: str, size: str, batch: str) -> dict[str, float]:
    """Peaks in MiB: predicted beyond weights, slots and the batch; planned as by NNTrainer."""
    model = prepared(name, int(size), int(batch), "sgdw")[0]
    held = et.memory.step(model, int(batch), np.zeros(len(model.tensors), bool)).live.min()
    predicted = et.memory.step(model, int(batch)).peak - held
    with et.memory.swapped(model):
        swapped = et.memory.step(model, int(batch)).peak - held
    found = {"predicted": predicted, "predicted_swapped": swapped}
    keys = {"planned": None, "planned_swapped": "activations", "planned_swapped_all": "all"}
    for key, swap in keys.items():
        found[key] = nntrainer.plan(model, int(batch), swap=swap).peak
    return {key: float(size) / MEBIBYTE for key, size in found.items()}


def peak(name: str, size: str, batch: str, how: str) -> dict[str, float]:
    """Peak of some steps beside weights, slots and the batch, in MiB."""
    model, x, y = prepared(name, int(size), int(batch), "sgdw")
    et.optimizers.build(model.optimizer, model.trainable_variables)
    batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    swap = et.memory.swapped(model) if how == "swapped" else contextlib.nullcontext()
    with swap as file:
        step = model.make_train_function()
        model.train_tf_function.get_concrete_function(batches)  # tracing is no part of it
        resident_before = resident_bytes()
        allocated_before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        tf.config.experimental.reset_memory_stats("CPU:0")
        for _ in range(STEPS):
            step(batches)
        allocated = tf.config.experimental.get_memory_info("CPU:0")["peak"] - allocated_before
        return {
            "resident": (peak_bytes() - resident_before) / MEBIBYTE,
            "allocated": allocated / MEBIBYTE,
            "file": 0.0 if file is None else file.nbytes / MEBIBYTE,
        }


def timed(name: str, size: str, batch: str) -> dict[str, Any]:
    """Seconds of steps with and without, in turn, and the median of their ratios."""
    model, x, y = prepared(name, int(size), int(batch), "sgdw")
    batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    plain = model.make_train_function()
    with et.memory.swapped(model):
        functions = (plain, model.make_train_function())
        seconds: list[list[float]] = [[], []]
        for turn in range(WARM_UP + PAIRS):
            for which in (0, 1) if turn % 2 else (1, 0):
                started = time.perf_counter()
                functions[which](batches)
                seconds[which].append(time.perf_counter() - started)
    pairs = np.round(seconds, 4)[:, WARM_UP:]
    return {
        "seconds": float(np.median(pairs[0])),
        "time_ratio": float(np.median(pairs[1] / pairs[0])),
        "all_seconds": pairs.tolist(),
    }


COLUMNS = (
    Column("model", "model"),
    Column("input_size", "pixels", "d"),
    Column("batch_size", "batch", "d"),
    Column("predicted", "predicted", ".0f"),
    Column("predicted_swapped", "swapped", ".0f"),
    Column("planned", "NNTrainer", ".0f"),
    Column("planned_swapped", "swapped", ".0f"),
    Column("planned_swapped_all", "weights too", ".0f"),
    Column("resident", "resident", ".0f"),
    Column("resident_swapped", "swapped", ".0f"),
    Column("allocated", "allocated", ".0f"),
    Column("allocated_swapped", "swapped", ".0f"),
    Column("file_swapped", "file", ".0f"),
    Column("seconds", "step", ".2f"),
    Column("time_ratio", "swapped / not", ".3f"),
)

if __name__ == "__main__":
    kinds = {"planned": planned, "peak": peak, "time": timed}
    print(json.dumps(kinds[sys.argv[1]](*sys.argv[2:])))

"""Swapped activations: memory and time of steps with and without.

Peaks are those of a process of its own each: TensorFlow's allocator gives nothing back. The C
library gives large buffers back at once (MALLOC_MMAP_THRESHOLD_), those of NumPy among them, which
count as resident memory alone. Times are taken in turn in one process.
"""

from __future__ import annotations

import contextlib
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf
from measuring import MIB, apart, columns, fresh, noise, peak_of_steps
from related import nntrainer

from elastic_tf.files.table import format_table
from elastic_tf.timing.stopwatch import time_in_turn

CASES = (("vgg16", 32, 64), ("mobilenet_v2", 128, 16), ("resnet50", 128, 16))  # size, batch
PAIRS, WARM_UP = 12, 2


def main(names: list[str] | None = None) -> dict[str, Any]:
    """Run all cases, or those of some models; print a table."""
    rows, returned = {}, {"MALLOC_MMAP_THRESHOLD_": "65536"}
    for case in CASES:
        if names is None or case[0] in names:
            plain, swapped = (apart(peak, *case, how, **returned) for how in (False, True))
            rows[case[0]] = {
                **dict(zip(("model", "input_size", "batch_size"), case)),
                **apart(planned, *case),
                **{key: plain[key] for key in ("resident", "allocated")},
                **{f"{key}_swapped": value for key, value in swapped.items()},
                **apart(timed, *case, **returned),
            }
    print(f"Steps with and without swapped activations, medians of {PAIRS} pairs, MiB and s:")
    print(format_table(list(rows.values()), COLUMNS))
    return rows


def planned(name: str, size: int, batch: int) -> dict[str, float]:
    """Peaks in MiB: predicted beyond weights, slots and the batch; planned as by NNTrainer."""
    model = fresh(name, size)
    held = et.memory.step(model, batch, np.zeros(len(model.tensors), bool)).live.min()
    found = {"predicted": et.memory.step(model, batch).peak - held}
    with et.memory.swapped(model):
        found["predicted_swapped"] = et.memory.step(model, batch).peak - held
    keys = {"planned": None, "planned_swapped": "activations", "planned_swapped_all": "all"}
    for key, swap in keys.items():
        found[key] = nntrainer.plan(model, batch, swap=swap).peak
    return {key: float(size) / MIB for key, size in found.items()}


def peak(name: str, size: int, batch: int, is_swapped: bool) -> dict[str, float]:
    """Peak of some steps beside weights, slots and the batch, in MiB."""
    model = fresh(name, size)
    with et.memory.swapped(model) if is_swapped else contextlib.nullcontext() as file:
        found = peak_of_steps(model, noise(size, batch))
        return {**found, "file": 0.0 if file is None else file.nbytes / MIB}


def timed(name: str, size: int, batch: int) -> dict[str, Any]:
    """Seconds of steps with and without, in turn, and the median of their ratios."""
    model = fresh(name, size)
    batches = iter(tf.data.Dataset.from_tensors(noise(size, batch)).repeat())
    plain = model.make_train_function()
    with et.memory.swapped(model):
        runs = (plain, model.make_train_function())
        for run in runs * WARM_UP:
            run(batches)
        pairs = 1e-6 * time_in_turn(runs, batches, repeats=PAIRS)
    return {
        "seconds": float(np.median(pairs[:, 0])),
        "time_ratio": float(np.median(pairs[:, 1] / pairs[:, 0])),
        "all_seconds": np.round(pairs.T, 4).tolist(),
    }


COLUMNS = columns(
    "model input_size:d batch_size:d predicted:.0f predicted_swapped:.0f planned:.0f "
    "planned_swapped:.0f planned_swapped_all:.0f resident:.0f resident_swapped:.0f "
    "allocated:.0f allocated_swapped:.0f file_swapped:.0f seconds:.2f time_ratio:.3f"
)

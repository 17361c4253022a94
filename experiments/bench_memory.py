"""Memory: how it stays flat over many selections, and its peak against full training.

`bench.py memory:vgg16,resnet50` measures what a step keeps alone, on these models: plain Keras,
ours, ours that computes as much as it can again, and ours that swaps; all tensors, and the last
that fit `RHO`.

Every case runs in a process of its own, two at a time. Resident memory is read after garbage
collection and after the C library has given back what it can.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf
from bench_time_model import CLASSES, random_mask

from elastic_tf.commands.training import harness
from elastic_tf.files.table import Column, format_table

SELECTIONS = 100
FLAT = (
    ("sgd", "set_mask"),
    ("sgd", "fit"),
    ("adam", "fit"),
    ("sgdw", "fit"),
)
PEAK = (("mobilenet_v2", 128, 16), ("resnet50", 128, 16))  # name, input size, batch size
ORDERED = tuple(
    (name, size, batch)
    for name in ("mobilenet_v2", "resnet50", "vgg16")
    for size in (32, 128)
    for batch in (16, 64)
)
WAYS = (  # what is trained, and how
    *("keras", "all", "all keep 0", "all swapped"),
    *("last", "last keep 0", "last swapped"),
)
RHO = 0.5
MEBIBYTE = 2**20


def main(some: Sequence[str] = ()) -> dict[str, Any]:
    """Run all cases, print two tables; or the order of steps alone, of some models."""
    if some:
        return {"order": ordered(some)}
    with ThreadPoolExecutor(2) as two:
        peak = list(two.map(lambda case: peaks(*case), PEAK))
        flat = list(two.map(lambda case: child("flat", *case), FLAT))
    print(f"MobileNetV2, resident MiB after so many of {SELECTIONS} selections:")
    print(format_table(flat, FLAT_COLUMNS))
    print("\nPeak of training beyond weights, slots and one batch, in MiB:")
    print(format_table(peak, PEAK_COLUMNS))
    return {"flat": flat, "peak": peak}


def ordered(names: Sequence[str]) -> list[dict[str, Any]]:
    """Peak of a process beyond the imported TensorFlow, and of its tensors, each way, in MiB."""
    rows = []
    for name, size, batch in ORDERED:
        if name in names:
            mask = child("last", name, size)["mask"]
            found = {way: child("step", name, size, batch, way, mask) for way in WAYS}
            rows.append({"model": name, "input_size": size, "batch_size": batch, **found})
            said = (
                f"{way} {one['process']:.0f} ({one['tensors']:.0f})" for way, one in found.items()
            )
            print(name, size, batch, *said, sep="  ", flush=True)
    return rows


def last(name: str, size: str) -> dict[str, str]:
    """The last tensors that fit `RHO`, by the step times of a small batch."""
    model, x, y = prepared(name, int(size), 4, "sgdw")
    profile = et.profile_model(model, x, y, repeats=3)
    chosen = et.select_tensors(et.importance.depth(model), profile, RHO, strategy="order")
    return {"mask": "".join("1" if on else "0" for on in chosen.mask)}


def step(name: str, size: str, batch: str, way: str, mask: str) -> dict[str, float]:
    """Peak of a few steps, from the import of TensorFlow on; the fastest of them, in seconds."""
    imported = resident_bytes()
    model, x, y = prepared(name, int(size), int(batch), "sgdw")
    trained, _, how = way.partition(" ")
    keep = how.removeprefix("keep ") if how.startswith("keep") else ""
    if trained == "keras":
        model = tf.keras.Model(model.inputs, model.outputs)
        model.compile(et.optimizers.by_name("sgdw", 1e-4), harness.loss())
    elif keep:
        model.compile(et.optimizers.by_name("sgdw", 1e-4), harness.loss(), keep=float(keep))
    if trained == "last":
        model.set_mask(np.array([digit == "1" for digit in mask]))
    ended: list[float] = []
    clock = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_: ended.append(time.perf_counter())
    )
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    swap = et.memory.swapped(model) if how == "swapped" else contextlib.nullcontext()
    with swap:
        model.fit(data, steps_per_epoch=4, verbose=0, callbacks=[clock])
    allocated = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    return {
        "process": (peak_bytes() - imported) / MEBIBYTE,
        "tensors": allocated / MEBIBYTE,
        "seconds": float(np.diff(ended).min()),
    }


def peaks(name: str, size: int, batch: int) -> dict[str, Any]:
    """Peak of full training and of training the selection at `RHO`, of one model."""
    chosen = child("select", name, size, batch)
    full = child("train", name, size, batch, "1" * chosen["tensors"])
    elastic = child("train", name, size, batch, chosen["mask"])
    return {
        "model": name,
        "input_size": size,
        "batch_size": batch,
        "trained": chosen["mask"].count("1"),
        **{f"full_{key}": value for key, value in full.items()},
        **{f"elastic_{key}": value for key, value in elastic.items()},
        "resident_ratio": elastic["resident"] / full["resident"],
        "allocated_ratio": elastic["allocated"] / full["allocated"],
        **chosen,
    }


def child(kind: str, *arguments: Any) -> dict[str, Any]:
    """What that case prints in a process of its own."""
    command = [sys.executable, str(Path(__file__).resolve()), kind, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=1200, env=environment
    )
    if run.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def flat(kind: str, way: str) -> dict[str, Any]:
    """Resident memory of a MobileNetV2 while selection follows selection, a step on each."""
    model, x, y = prepared("mobilenet_v2", 64, 2, kind)
    rng = np.random.default_rng(0)
    resident: list[float] = []

    def note(*_: Any) -> None:
        resident.append(resident_bytes() / MEBIBYTE)

    def select(*_: Any) -> None:
        model.set_mask(random_mask(rng, len(model.tensors)))

    if way == "set_mask":
        for _ in range(SELECTIONS):
            select()
            model.train_on_batch(x, y)
            note()
    else:
        callback = tf.keras.callbacks.LambdaCallback(on_epoch_begin=select, on_epoch_end=note)
        data = tf.data.Dataset.from_tensors((x, y)).repeat()
        model.fit(data, steps_per_epoch=1, epochs=SELECTIONS, verbose=0, callbacks=[callback])
    return {
        "optimizer": kind,
        "way": way,
        "at_10": resident[9],
        "at_50": resident[49],
        "at_100": resident[99],
        "ratio": resident[99] / resident[9],
        "resident": [round(value, 1) for value in resident],
    }


def select(name: str, size: str, batch: str) -> dict[str, Any]:
    """The selection at `RHO`, on noise."""
    model, x, y = prepared(name, int(size), int(batch), "sgdw")
    profile = et.profile_model(model, x, y, repeats=3)
    worth = et.importance.loss_decrease(model, x, y)
    chosen = et.select_tensors(worth, profile, RHO, required=et.zoo.head_tensors(model))
    mask = "".join("1" if on else "0" for on in chosen.mask)
    ratio = chosen.time / profile.t_full
    return {"mask": mask, "tensors": len(mask), "predicted_ratio": ratio}


def train(name: str, size: str, batch: str, mask: str) -> dict[str, float]:
    """Peak memory of a few steps under `mask`."""
    model, x, y = prepared(name, int(size), int(batch), "sgdw")
    with model.distribute_strategy.scope():
        et.optimizers.build(model.optimizer, model.trainable_variables)
    model.set_mask(np.array([digit == "1" for digit in mask]))
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    model.make_train_function().get_concrete_function(iter(data))  # tracing is no part of it
    resident_before = resident_bytes()
    allocated_before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.fit(data, steps_per_epoch=4, verbose=0)
    allocated = tf.config.experimental.get_memory_info("CPU:0")["peak"] - allocated_before
    return {
        "resident": (peak_bytes() - resident_before) / MEBIBYTE,
        "allocated": allocated / MEBIBYTE,
    }


def prepared(
    name: str, size: int, batch: int, kind: str
) -> tuple[et.ElasticModel, np.ndarray, np.ndarray]:
    """A compiled model and a batch of noise."""
    tf.keras.utils.set_random_seed(0)
    source = et.zoo.build(name, classes=CLASSES, input_size=size, weights=None)
    model = et.ElasticModel.from_model(source)
    model.compile(et.optimizers.by_name(kind, 1e-4), harness.loss())
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 255, (batch, size, size, 3)).astype(np.float32)
    return model, x, rng.integers(0, CLASSES, batch)


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


FLAT_COLUMNS = (
    Column("optimizer", "optimizer"),
    Column("way", "selected by"),
    Column("at_10", "10th", ".0f"),
    Column("at_50", "50th", ".0f"),
    Column("at_100", "100th", ".0f"),
    Column("ratio", "100th / 10th", ".3f"),
)
PEAK_COLUMNS = (
    Column("model", "model"),
    Column("batch_size", "batch", "d"),
    Column("tensors", "N", "d"),
    Column("trained", "trained", "d"),
    Column("predicted_ratio", "predicted ratio", ".2f"),
    Column("full_resident", "full resident", ".0f"),
    Column("elastic_resident", "elastic resident", ".0f"),
    Column("resident_ratio", "ratio", ".2f"),
    Column("full_allocated", "full allocated", ".0f"),
    Column("elastic_allocated", "elastic allocated", ".0f"),
    Column("allocated_ratio", "ratio", ".2f"),
)

if __name__ == "__main__":
    kinds = {"flat": flat, "select": select, "train": train, "last": last, "step": step}
    print(json.dumps(kinds[sys.argv[1]](*sys.argv[2:])))

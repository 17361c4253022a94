"""Memory: how it stays flat over many selections, and its peak against full training.

`bench.py memory:vgg16,resnet50` measures what a step keeps alone, on these models: plain Keras,
ours, and ours that computes as much as it can again; all tensors, and the last that fit `RHO`.

Every case runs in a process of its own, two at a time. Resident memory is read after garbage
collection and after the C library has given back what it can.

    python experiments/bench_memory.py FUNCTION ARGUMENTS

calls a function with arguments in JSON and prints what it returns likewise; see `apart`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf
from measuring import DEVICE, StepTimes, allocated_bytes, fresh, noise, random_mask

from elastic_tf.app.commands import harness
from elastic_tf.files import format_table, to_json

MIB = 2**20
SELECTIONS = 100
FLAT = (("sgd", "set_mask"), ("sgd", "fit"), ("adam", "fit"), ("sgdw", "fit"))
PEAK = (("mobilenet_v2", 128, 16), ("resnet50", 128, 16))  # name, input size, batch size
ORDERED = tuple(
    (name, size, batch)
    for name in ("mobilenet_v2", "resnet50", "vgg16")
    for size in (32, 128)
    for batch in (16, 64)
)
WAYS = (  # what is trained, and how
    *("keras", "all", "all keep 0"),
    *("last", "last keep 0"),
)
RHO = 0.5


def main(some: Sequence[str] = ()) -> dict[str, Any]:
    """Run all cases, print two tables; or the order of steps alone, of some models."""
    if some:
        return {"order": ordered(some)}
    with ThreadPoolExecutor(2) as two:
        peak = list(two.map(lambda case: peaks(*case), PEAK))
        found = list(two.map(lambda case: apart(flat, *case), FLAT))
    print(f"MobileNetV2, resident MiB after so many of {SELECTIONS} selections:")
    print(format_table(found, FLAT_COLUMNS))
    print("\nPeak of training beyond weights, slots and one batch, in MiB:")
    print(format_table(peak, PEAK_COLUMNS))
    return {"flat": found, "peak": peak}


def ordered(names: Sequence[str]) -> list[dict[str, Any]]:
    """Peak of a process beyond the imported TensorFlow, and of its tensors, each way, in MiB."""
    rows = []
    for name, size, batch in ORDERED:
        if name in names:
            mask = apart(select, name, size, 4, True)["mask"]
            found = {way: apart(step, name, size, batch, way, mask) for way in WAYS}
            rows.append({"model": name, "input_size": size, "batch_size": batch, **found})
            said = (
                f"{way} {one['process']:.0f} ({one['tensors']:.0f})" for way, one in found.items()
            )
            print(name, size, batch, *said, sep="  ", flush=True)
    return rows


def step(name: str, size: int, batch: int, way: str, mask: str) -> dict[str, float]:
    """Peak of a few steps, from the import of TensorFlow on; the fastest of them, in seconds."""
    imported = resident_bytes()
    model = fresh(name, size)
    trained, _, how = way.partition(" ")
    if trained == "keras":
        model = tf.keras.Model(model.inputs, model.outputs)
        model.compile(et.optimizers.by_name("sgdw", 1e-4), harness.loss())
    elif how.startswith("keep"):
        keep = float(how.removeprefix("keep "))
        model.compile(et.optimizers.by_name("sgdw", 1e-4), harness.loss(), keep=keep)
    if trained == "last":
        model.set_mask(of_digits(mask))
    times = StepTimes()
    data = tf.data.Dataset.from_tensors(noise(size, batch)).repeat()
    model.fit(data, steps_per_epoch=4, verbose=0, callbacks=[times])
    return {
        "process": (peak_bytes() - imported) / MIB,
        "tensors": allocated_bytes("peak") / MIB,
        "seconds": min(times.seconds[1:]),
    }


def peaks(name: str, size: int, batch: int) -> dict[str, Any]:
    """Peak of full training and of training the selection at `RHO`, of one model."""
    chosen = apart(select, name, size, batch)
    full = apart(train, name, size, batch, "1" * chosen["tensors"])
    elastic = apart(train, name, size, batch, chosen["mask"])
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


def flat(optimizer: str, way: str) -> dict[str, Any]:
    """Resident memory of a MobileNetV2 while selection follows selection, a step on each."""
    model, (x, y) = fresh("mobilenet_v2", 64, optimizer=optimizer), noise(64, 2)
    rng = np.random.default_rng(0)
    resident: list[float] = []

    def note(*_: Any) -> None:
        resident.append(resident_bytes() / MIB)

    def choose(*_: Any) -> None:
        model.set_mask(random_mask(rng, len(model.tensors)))

    if way == "set_mask":
        for _ in range(SELECTIONS):
            choose()
            model.train_on_batch(x, y)
            note()
    else:
        callback = tf.keras.callbacks.LambdaCallback(on_epoch_begin=choose, on_epoch_end=note)
        data = tf.data.Dataset.from_tensors((x, y)).repeat()
        model.fit(data, steps_per_epoch=1, epochs=SELECTIONS, verbose=0, callbacks=[callback])
    return {
        "optimizer": optimizer,
        "way": way,
        **{f"at_{number}": resident[number - 1] for number in (10, 50, 100)},
        "ratio": resident[99] / resident[9],
        "resident": [round(value, 1) for value in resident],
    }


def select(name: str, size: int, batch: int, is_last: bool = False) -> dict[str, Any]:
    """The selection at `RHO`, on noise: of most worth, or the last tensors."""
    model, (x, y) = fresh(name, size), noise(size, batch)
    profile = et.profile_model(model, x, y, repeats=3)
    if is_last:
        chosen = et.select_tensors(et.importance.depth(model), profile, RHO, strategy="order")
    else:
        worth = et.importance.loss_decrease(model, x, y)
        chosen = et.select_tensors(worth, profile, RHO, required=et.zoo.head_tensors(model))
    mask = "".join("1" if on else "0" for on in chosen.mask)
    return {
        "mask": mask,
        "tensors": len(mask),
        "predicted_ratio": chosen.time / profile.t_full,
    }


def train(name: str, size: int, batch: int, mask: str) -> dict[str, float]:
    """MiB that four steps under `mask` take at most beside weights, slots and the batch."""
    model = fresh(name, size)
    model.set_mask(of_digits(mask))
    et.optimizers.build(model.optimizer, model.trainable_variables)
    batches = iter(tf.data.Dataset.from_tensors(noise(size, batch)).repeat())
    step = model.make_train_function()
    model.train_tf_function.get_concrete_function(batches)  # tracing is no part of it
    resident, allocated = resident_bytes(), allocated_bytes("current")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    tf.config.experimental.reset_memory_stats(DEVICE)
    for _ in range(4):
        step(batches)
    return {
        "resident": (peak_bytes() - resident) / MIB,
        "allocated": (allocated_bytes("peak") - allocated) / MIB,
    }


def of_digits(mask: str) -> np.ndarray:
    """A mask from its digits."""
    return np.array([digit == "1" for digit in mask])


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of this file returns in a process of its own."""
    command = [sys.executable, __file__, function.__name__, json.dumps(arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
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


FLAT_COLUMNS = "optimizer way at_10:.0f at_50:.0f at_100:.0f ratio:.3f".split()
PEAK_COLUMNS = (
    "model batch_size:d tensors:d trained:d predicted_ratio:.2f full_resident:.0f "
    "elastic_resident:.0f resident_ratio:.2f full_allocated:.0f elastic_allocated:.0f "
    "allocated_ratio:.2f"
).split()

if __name__ == "__main__":
    found = globals()[sys.argv[1]](*json.loads(sys.argv[2]))
    print(json.dumps(to_json(found)))

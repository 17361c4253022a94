"""Too little memory for the probe: an address space with a limit, in a process of its own.

    python tests/faults/memory.py ROOM

evaluates the importance with so many MiB beside what the process has after a small one, and prints
what came out as JSON.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES, SIZE, CHANNELS = 256, 64, 32  # a pass over half of them holds about 200 MiB
ROOMS = (180, 140, 100)  # MiB
_MIB = 1 << 20


def rows(kills: int, jobs: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Try limits that hold a part of the probe, and one that holds no sample."""
    expected = _child(100_000, onednn=False)["importance"]
    found = [_child(room, onednn=False) for room in ROOMS]
    same = [
        one.get("micro_batch", SAMPLES) < SAMPLES // 2
        and np.allclose(one["importance"], expected, rtol=1e-3)
        for one in found
    ]
    sizes = ", ".join(str(one.get("micro_batch")) for one in found)
    yield {
        "fault": "memory limit in the importance (RLIMIT_AS)",
        "tried": len(ROOMS),
        "outcome": f"{sum(same)} times the same importance, in micro-batches of {sizes} "
        f"instead of {SAMPLES // 2}",
        "lost": "nothing",
        "as_expected": all(same),
    }
    none = _child(30, onednn=False)
    yield {
        "fault": "memory limit that holds no sample (RLIMIT_AS)",
        "tried": 1,
        "outcome": "MemoryError that says what to do" if "error" in none else f"{none}",
        "lost": "nothing that was trained",
        "as_expected": "for one sample at a time" in none.get("error", ""),
    }
    codes = [_child(room, onednn=True).get("code") for room in ROOMS]
    yield {
        "fault": "memory limit in the importance, with oneDNN",
        "tried": len(ROOMS),
        "outcome": f"TensorFlow ends the process itself, exit codes {codes}",
        "lost": "the process, as with a kill",
        "as_expected": all(code is None or code < 0 for code in codes),
    }


def _child(room: int, *, onednn: bool) -> dict[str, Any]:
    environment = {
        **os.environ,
        "TF_ENABLE_ONEDNN_OPTS": str(int(onednn)),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "MALLOC_ARENA_MAX": "1",
    }
    command = [sys.executable, __file__, str(room)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else {"code": done.returncode}


def main(room: int) -> None:
    """Evaluate under the limit."""
    import tensorflow as tf

    import elastic_tf as et

    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(0)
    inputs = layers.Input((SIZE, SIZE, 8))
    x = layers.Conv2D(CHANNELS, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(CHANNELS, 3, padding="same", activation="relu")(x)
    outputs = layers.Dense(3)(layers.GlobalAveragePooling2D()(x))
    model = et.ElasticModel.from_model(tf.keras.Model(inputs, outputs))
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    images = tf.constant(rng.normal(size=(SAMPLES, SIZE, SIZE, 8)).astype(np.float32))
    labels = tf.constant(rng.integers(0, 3, SAMPLES))
    et.importance.loss_decrease(model, images[:2], labels[:2])  # threads and code have their room
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * os.sysconf("SC_PAGE_SIZE") + room * _MIB
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found["importance"] = et.importance.loss_decrease(model, images, labels).tolist()
        except MemoryError as error:
            found["error"] = str(error)
    said = [str(one.message) for one in caught if "micro-batches of" in str(one.message)]
    if said:
        found["micro_batch"] = int(said[0].split()[-1].rstrip("."))
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))

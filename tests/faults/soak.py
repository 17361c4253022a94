"""Select anew every few seconds for hours, and watch what the process holds on to.

One `fit` of the digits' network under a budget that changes with every selection, so that nearly
every selection traces a new train function, with backups and profiles made again. Before an epoch
every few seconds memory, files and threads are counted.

Example: python tests/faults/soak.py --minutes 120 --out experiments/results/soak.json
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf

from elastic_tf.app.commands import commandline, harness
from elastic_tf.app.commands.commandline import option
from elastic_tf.files import format_table, write_json

WEIGHTS = Path(__file__).resolve().parents[2] / "experiments" / "weights" / "digits_resnet.h5"
IMAGE_SIZE, BATCH, STEPS = 32, 32, 20
RHOS = (0.45, 0.9)  # the budget wanders between them
WARM_UP = 0.25  # share of the time after which memory must be flat
COUNTED = ("resident", "allocated", "files", "threads", "backup_bytes")
COLUMNS = (
    *("minutes:.1f", "selections", "masks::different masks", "resident:.1f:resident MiB"),
    *("allocated:.1f:allocated MiB", "files::open files", "threads", "backup_bytes"),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of the soak."""

    minutes: float = option(120.0, help="how long")
    every: float = option(30.0, help="seconds between two counts")
    seed: int = option(0, help="of budgets, order and draws")
    out: Path = option(Path("experiments/results/soak.json"), help="where the figures go")


class Watch(tf.keras.callbacks.Callback):
    """Counts every few seconds; stops the training when its time is over."""

    def __init__(self, callback: et.ElasticCallback, folder: Path, settings: Settings) -> None:
        super().__init__()
        self.counts: list[dict[str, Any]] = []
        self._callback = callback
        self._folder = folder
        self._settings = settings
        self._started = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        minutes = (time.monotonic() - self._started) / 60.0
        last = self.counts[-1]["minutes"] if self.counts else -np.inf
        if 60.0 * (minutes - last) >= self._settings.every:
            self.counts.append({"minutes": minutes, **self._count()})
            if len(self.counts) % 20 == 1:
                print(format_table(self.counts[-1:], COLUMNS), flush=True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if time.monotonic() - self._started >= 60.0 * self._settings.minutes:
            self.model.stop_training = True

    def _count(self) -> dict[str, Any]:
        selections = self._callback.selections
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {
            "selections": len(selections),
            "masks": len({record.mask.tobytes() for record in selections}),
            "resident": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            "allocated": allocated_bytes() / 2**20,
            "files": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "backup_bytes": sum(
                path.stat().st_size for path in (self._folder / "backup").rglob("*")
            ),
        }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train, count, print the table, write the figures."""
    settings = commandline.parse(Settings, __doc__ or "", arguments)
    tf.keras.utils.set_random_seed(settings.seed)
    data = et.data.from_arrays(
        *et.data.digits(image_size=IMAGE_SIZE, shift=et.data.Shift(rotation=45.0)),
        batch_size=BATCH,
        seed=settings.seed,
    )
    model = et.zoo.build(
        "digits_resnet", classes=data.classes, input_size=IMAGE_SIZE, weights=WEIGHTS
    )
    elastic = harness.compiled(model, "adam", 1e-3)
    profile = et.profile_model(elastic, *next(iter(data.train)), repeats=10)
    wander = np.random.default_rng(settings.seed).uniform(*RHOS, size=1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        callback = et.ElasticCallback(
            profile,
            rho=lambda epoch: float(wander[epoch]),
            interval=1,
            probe=data.probe,
            required=et.zoo.head_tensors(elastic),
            backup=et.Backup(Path(folder, "backup")),
        )
        watch = Watch(callback, Path(folder), settings)
        elastic.fit(
            data.train.repeat(),
            epochs=len(wander),
            steps_per_epoch=STEPS,
            verbose=0,
            callbacks=[callback, watch],
        )
    result = {
        "command": f"python tests/faults/soak.py --minutes {settings.minutes:g}",
        "date": date.today().isoformat(),
        "device": profile.device,
        "growth": growth(watch.counts),
        "data": watch.counts,
    }
    write_json(settings.out, result)
    shown = [watch.counts[i] for i in np.linspace(0, len(watch.counts) - 1, 12).astype(int)]
    print("\n" + format_table(shown, COLUMNS))
    print(f"After the first {WARM_UP:.0%} of the time, per hour: {result['growth']}")
    return result


def growth(counts: list[dict[str, Any]]) -> dict[str, float]:
    """Slope of a line through what was counted after the warm-up, per hour."""
    kept = [one for one in counts if one["minutes"] >= WARM_UP * counts[-1]["minutes"]]
    hours = np.array([one["minutes"] / 60.0 for one in kept])
    if not np.ptp(hours):
        return {}
    return {name: float(np.polyfit(hours, [one[name] for one in kept], 1)[0]) for name in COUNTED}


class _Allocated(ctypes.Structure):
    """What the C library (2.33 or later) says of its heaps: its `mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated_bytes() -> int:
    """Memory in use, without what the C library keeps for later."""
    asked = ctypes.CDLL("libc.so.6").mallinfo2
    asked.restype = _Allocated
    found = asked()
    return int(found.uordblks + found.hblkhd)


if __name__ == "__main__":
    commandline.run(main)

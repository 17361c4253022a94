"""What `et.forecast` says of two epochs of five networks; how deadlines are kept.

Sixty trainings with a deadline, by `finetune`, by `fit` with `et.Deadline` and by the command
`train`, whose seconds count from the start of the program. Every second one meets a core that is
busy from a random moment on.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from measuring import fresh, noise
from PIL import Image

import elastic_tf as et
from elastic_tf.files import format_table

MODELS = (  # name, width multiplier, input size in pixels
    ("mobilenet", 0.75, 128),
    ("mobilenet_v2", 1.0, 128),
    ("efficientnet_v2b0", 1.0, 96),
    ("resnet50", 1.0, 96),
    ("vit_ti16", 1.0, 96),
)
IMAGES, RHO, EPOCHS = 640, 0.5, 2
COLUMNS = "network training foretold:.1f taken:.1f ratio:.2f".split()
WAYS = ("finetune", "deadline", "train")
SECONDS = {"resnet50": (10.0, 20.0, 60.0, 300.0)}  # of the others:
USUAL_SECONDS = (5.0, 10.0, 20.0, 40.0)
LONG = 100.0  # seconds from which five epochs may be over before
DEADLINE_COLUMNS = "way network seconds:.0f load_at taken:.1f off:+.1%".split()


def main(names: Sequence[str] = ("forecast", *WAYS)) -> dict[str, Any]:
    """Print the tables; `names` leaves some out."""
    results: dict[str, Any] = {}
    if "forecast" in names:
        found = [forecast(*model, is_elastic) for model in MODELS for is_elastic in (True, False)]
        results["forecast"] = found
        print(format_table(found, COLUMNS))
    for way in [one for one in WAYS if one in names]:
        rng = np.random.default_rng(WAYS.index(way))
        found = results[way] = []
        for model in MODELS:
            for k, seconds in enumerate(SECONDS.get(model[0], USUAL_SECONDS)):
                moment = float(rng.uniform(0.1, 0.9) * seconds) if k % 2 else None
                found.append(kept_to(way, *model, seconds, moment))
        print(format_table(found, DEADLINE_COLUMNS))
    return results


def kept_to(
    way: str, name: str, alpha: float, size: int, seconds: float, moment: float | None
) -> dict[str, Any]:
    """What a training in so many seconds took; a core is busy from a moment on."""
    epochs = 5 if seconds < LONG else 20
    with (
        load() as begin,
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # that there is no time to train
        train = PREPARE[way](Path(folder), name, alpha, size, seconds, epochs)
        timer = threading.Timer(moment or 0.0, begin)
        if moment is not None:
            timer.start()
        started = time.perf_counter()
        taken = train() or time.perf_counter() - started
        timer.cancel()
    at = "none" if moment is None else f"{moment:.1f}"
    told = {"way": way, "network": name, "seconds": seconds, "load_at": at, "taken": taken}
    return {**told, "off": taken / seconds - 1.0}


@contextlib.contextmanager
def load() -> Iterator[Callable[[], None]]:
    """Gives a function that starts a process which keeps a core busy until the context ends."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield lambda: started.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
    finally:
        for process in started:
            process.kill()
            process.wait()


def by_finetune(
    folder: Path, name: str, alpha: float, size: int, seconds: float, epochs: int
) -> Any:
    """A call of `finetune`."""
    model, data = fresh(name, size, alpha=alpha), noise(size, IMAGES)
    held = noise(size, IMAGES // 10, seed=1)

    def train() -> None:
        et.finetune(model, data, held, seconds=seconds, epochs=epochs, verbose=0)

    return train


def by_fit(folder: Path, name: str, alpha: float, size: int, seconds: float, epochs: int) -> Any:
    """The three lines with a deadline."""
    model = fresh(name, size, alpha=alpha, optimizer="adam")
    samples = et.Samples(*noise(size, IMAGES), batch_size=16)
    held = noise(size, IMAGES // 10, seed=1)
    callbacks = [et.ElasticCallback(rho=et.Deadline(seconds)), et.SolveHead()]

    def train() -> None:
        options = {"epochs": epochs, "verbose": 0, "callbacks": callbacks}
        model.fit(samples, validation_data=held, **options)

    return train


def by_command(
    folder: Path, name: str, alpha: float, size: int, seconds: float, epochs: int
) -> Any:
    """A process of `elastic-tf train`, until it has written the weights."""
    x, y = noise(size, IMAGES)
    for k, (image, label) in enumerate(zip(x.astype(np.uint8), y)):
        path = folder / "data" / f"{label:02d}" / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    run, file = folder / "run", folder / "network.keras"
    network = fresh(name, size, alpha=alpha)
    tf.keras.Model(network.inputs, network.outputs).save(file)
    given = {"model": file, "input-size": size, "data": folder / "data"}
    given |= {"seconds": seconds, "epochs": epochs, "out": run}
    options = [part for key, value in given.items() for part in (f"--{key}", str(value))]

    def train() -> float:
        started = time.time()
        command = [sys.executable, "-W", "ignore", "-m", "elastic_tf", "train", *options, "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return (run / "model.weights.h5").stat().st_mtime - started

    return train


PREPARE = {"finetune": by_finetune, "deadline": by_fit, "train": by_command}


def forecast(name: str, alpha: float, size: int, is_elastic: bool) -> dict[str, Any]:
    """What an elastic or a full training was thought to take, and took."""
    model = fresh(name, size, alpha=alpha, optimizer="adam")
    samples = et.Samples(*noise(size, IMAGES), batch_size=16)
    told = et.forecast(model, samples, rho=RHO, epochs=EPOCHS)
    foretold = (told.elastic if is_elastic else told.full).seconds
    callbacks = [et.ElasticCallback(rho=RHO), et.SolveHead()] if is_elastic else []
    started = time.perf_counter()
    model.fit(samples, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    taken = time.perf_counter() - started
    return {
        "network": name,
        "training": "elastic" if is_elastic else "full",
        "foretold": foretold,
        "taken": taken,
        "ratio": taken / foretold,
    }

"""What `et.forecast` says of two epochs of five networks; how `finetune` keeps to its seconds.

Half of the trainings with a deadline meet a core that is busy from a random moment on.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from bench_control import load
from measuring import fresh, noise

import elastic_tf as et
from elastic_tf.files.table import format_table

MODELS = (  # name, width multiplier, input size in pixels
    ("mobilenet", 0.75, 128),
    ("mobilenet_v2", 1.0, 128),
    ("efficientnet_v2b0", 1.0, 96),
    ("resnet50", 1.0, 96),
    ("vit_ti16", 1.0, 96),
)
IMAGES, RHO, EPOCHS = 640, 0.5, 2
COLUMNS = "network training foretold:.1f taken:.1f ratio:.2f".split()
SECONDS = (5.0, 10.0, 20.0, 40.0)
DEADLINE_COLUMNS = "network seconds:.0f load_at taken:.1f off:+.1%".split()


def main(names: Sequence[str] = ("forecast", "finetune")) -> dict[str, Any]:
    """Print the tables; `names` leaves some out."""
    results: dict[str, Any] = {}
    if "forecast" in names:
        found = [forecast(*model, is_elastic) for model in MODELS for is_elastic in (True, False)]
        results["forecast"] = found
        print(format_table(found, COLUMNS))
    if "finetune" in names:
        rng = np.random.default_rng(0)
        found = results["finetune"] = []
        for model in MODELS:
            for k, seconds in enumerate(SECONDS):
                moment = float(rng.uniform(0.1, 0.9) * seconds) if k % 2 else None
                found.append(kept_to(*model, seconds, moment))
        print(format_table(found, DEADLINE_COLUMNS))
    return results


def kept_to(
    name: str, alpha: float, size: int, seconds: float, moment: float | None
) -> dict[str, Any]:
    """What `finetune` in so many seconds took; a core is busy from a moment on."""
    model, (x, y) = fresh(name, size, alpha=alpha), noise(size, IMAGES)
    held = noise(size, IMAGES // 10, seed=1)
    with load() as begin, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no time to train
        timer = threading.Timer(moment or 0.0, begin)
        if moment is not None:
            timer.start()
        started = time.perf_counter()
        et.finetune(model, (x, y), held, seconds=seconds, verbose=0)
        taken = time.perf_counter() - started
        timer.cancel()
    at = "none" if moment is None else f"{moment:.1f}"
    told = {"network": name, "seconds": seconds, "load_at": at}
    return {**told, "taken": taken, "off": taken / seconds - 1.0}


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

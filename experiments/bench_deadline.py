"""How well deadlines are kept: five networks, 5 to 120 seconds, half of the cases with a busy core.

Images are noise with a tint for each of 20 classes: what counts here is the clock. Seconds, network
and moment of the load are drawn by a seed. `finetune` counts from its call, `Deadline` from the
call of `fit`. "whole" are trainings that did all that can be done before the deadline, or the head
alone. Beside it what `et.forecast` says of two epochs, and what they take.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf
from measuring import load

from elastic_tf.files.table import Column, format_table

NETWORKS = {"mobilenet": 128, "mobilenet_v2": 128, "efficientnet": 96, "resnet50": 96, "vit": 96}
CASES, CLASSES, IMAGES = 15, 20, 640
LEAST, MOST = 5.0, 120.0  # seconds, drawn evenly on a logarithmic scale
COLUMNS = (
    "network",
    "way",
    "load",
    Column("asked", "asked s", ".1f"),
    Column("taken", "taken s", ".1f"),
    Column("used", "used", ".1%"),
    "whole",
)
FORECAST_COLUMNS = (
    "network",
    "training",
    Column("foretold", "foretold s", ".1f"),
    Column("taken", "taken s", ".1f"),
    Column("ratio", "ratio", ".2f"),
)
RHO, EPOCHS = 0.5, 2


def main(names: Any = ("deadlines", "forecast")) -> dict[str, Any]:
    """Print two tables, or those named."""
    found: dict[str, Any] = {}
    if "forecast" in names:
        found["forecast"] = [one for network in NETWORKS for one in forecast(network)]
        print(format_table(found["forecast"], FORECAST_COLUMNS))
    if "deadlines" in names:
        found["deadlines"] = deadlines(CASES)
    return found


def forecast(network: str) -> list[dict[str, Any]]:
    """What an elastic and a full training were thought to take, and took."""
    tf.keras.backend.clear_session()
    found = []
    for training in ("elastic", "full"):
        model = compiled(built(network))
        samples = et.Samples(*images(NETWORKS[network]), batch_size=16)
        told = getattr(et.forecast(model, samples, rho=RHO, epochs=EPOCHS), training).seconds
        started = time.perf_counter()
        elastic = [et.ElasticCallback(rho=RHO), et.SolveHead()]
        model.fit(
            samples, epochs=EPOCHS, verbose=0, callbacks=elastic if training == "elastic" else []
        )
        taken = time.perf_counter() - started
        row = {"network": network, "training": training, "foretold": told, "taken": taken}
        found.append({**row, "ratio": taken / told})
    return found


def deadlines(count: int) -> list[dict[str, Any]]:
    """Train each case."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(count):
        network = list(NETWORKS)[number % len(NETWORKS)]
        asked = float(np.exp(rng.uniform(np.log(LEAST), np.log(MOST))))
        after = float(rng.uniform(0.1, 0.8)) * asked if number % 4 >= 2 else None
        way = "finetune" if number % 2 == 0 else "Deadline"
        found.append(case(network, way, asked, after))
        print(format_table(found[-1:], COLUMNS).splitlines()[-1], flush=True)
    late = [one["used"] for one in found if one["used"] > 1.02]
    idle = [one["used"] for one in found if one["used"] < 0.85 and not one["whole"]]
    print(format_table(found, COLUMNS))
    print(f"{len(late)} of {count} later than 2 %, {len(idle)} used less than 85 %.")
    return found


def case(network: str, way: str, asked: float, after: float | None) -> dict[str, Any]:
    """One training; a load begins after so many seconds."""
    tf.keras.backend.clear_session()
    base, (x, y) = built(network), images(NETWORKS[network])
    with load() as begin, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timer = threading.Timer(after or 0.0, begin)
        if after is not None:
            timer.start()
        started = time.perf_counter()
        if way == "finetune":
            model = et.finetune(base, (x, y), seconds=asked, verbose=0)
            fitted = getattr(model, "history", None)  # None where the head alone was solved
            epochs = 0 if fitted is None else len(fitted.history["loss"])
            whole = fitted is None or (epochs == 5 and time.perf_counter() - started < asked)
        else:
            whole = deadline(base, (x, y), asked)
        taken = time.perf_counter() - started
        timer.cancel()
    told = {"network": network, "way": way, "load": "-" if after is None else f"from {after:.0f} s"}
    return {**told, "asked": asked, "taken": taken, "used": taken / asked, "whole": bool(whole)}


def deadline(base: tf.keras.Model, data: Any, asked: float) -> bool:
    """`fit` with a deadline; whether everything was trained, or nothing could be."""
    model = compiled(base)
    chosen = et.ElasticCallback(rho=et.Deadline(asked))
    samples = et.Samples(*data, batch_size=16)
    with contextlib.suppress(ValueError):  # refused: impossible
        model.fit(samples, epochs=5, verbose=0, callbacks=[chosen, et.SolveHead()])
        return chosen.selections[-1].is_full
    return True


def compiled(base: tf.keras.Model) -> et.ElasticModel:
    """With a head, for training."""
    outputs = tf.keras.layers.Dense(CLASSES)(base.output)
    model = et.ElasticModel.from_model(tf.keras.Model(base.input, outputs))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(et.optimizers.adam(2e-4), loss, statistics="stored")
    return model


def built(network: str) -> tf.keras.Model:
    """Random weights: they take as long as others."""
    size = NETWORKS[network]
    if network == "vit":
        whole = et.zoo.build("vit_ti16", classes=CLASSES, input_size=size)
        return tf.keras.Model(whole.input, whole.layers[-1].input)
    options = {"input_shape": (size, size, 3), "include_top": False, "weights": None}
    options |= {"alpha": 0.75} if network == "mobilenet" else {}
    makers = {
        "mobilenet": tf.keras.applications.MobileNet,
        "mobilenet_v2": tf.keras.applications.MobileNetV2,
        "efficientnet": tf.keras.applications.EfficientNetB0,
        "resnet50": tf.keras.applications.ResNet50,
    }
    return makers[network](pooling="avg", **options)


def images(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise, -1 to 1, with a tint for each class."""
    rng = np.random.default_rng(0)
    y = np.arange(IMAGES) % CLASSES
    tints = rng.uniform(-0.5, 0.5, (CLASSES, 1, 1, 3))
    x = rng.uniform(-0.5, 0.5, (IMAGES, size, size, 3)) + tints[y]
    return x.astype(np.float32), y

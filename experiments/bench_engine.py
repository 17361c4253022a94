"""What the elastic train step costs beside that of plain Keras, and what a new mask costs.

For each model a plain and an elastic copy with all tensors trained are fitted in turn, a few steps
at a time; the overhead is the median over the rounds of the ratio of their steps. Then the first
step under a new mask against the following ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from measuring import CLASSES, MODELS, StepTimes, fresh, noise, of_models, random_mask

import elastic_tf as et
from elastic_tf.app.commands import harness
from elastic_tf.files import format_table

ROUNDS, STEPS = 25, 4  # fits of each copy, steps of a fit
SECONDS = 30.0  # for the rounds of one model
NEW_MASKS = 2


def main(names: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure all models, or those named; print a table."""
    results = of_models(measure, MODELS, names)
    rows = [{"model": name, **data} for name, data in results.items()]
    print(format_table(rows, COLUMNS))
    return results


def measure(name: str, alpha: float, size: int) -> dict[str, Any]:
    """Overhead, new mask and cached switch of one model."""
    elastic = fresh(name, size, alpha=alpha)
    plain = et.zoo.build(name, classes=CLASSES, input_size=size, alpha=alpha, weights=None)
    plain.compile(et.optimizers.by_name("sgdw", 1e-4), harness.loss(), metrics=["accuracy"])
    rng = np.random.default_rng(0)
    data = tf.data.Dataset.from_tensors(noise(size)).repeat()

    first = [fit(model, data)[0] for model in (plain, elastic)]
    steps: list[list[float]] = []
    started = time.perf_counter()
    while len(steps) < ROUNDS and (len(steps) < 5 or time.perf_counter() - started < SECONDS):
        pair = (plain, elastic) if len(steps) % 2 else (elastic, plain)  # no one is always first
        seconds = {id(model): float(np.median(fit(model, data)[1:])) for model in pair}
        steps.append([seconds[id(plain)], seconds[id(elastic)]])
    ratios = np.array([mine / theirs for theirs, mine in steps])

    masks = [random_mask(rng, len(elastic.tensors)) for _ in range(NEW_MASKS)]
    new = [new_mask(elastic, data, mask) for mask in masks]
    return {
        "tensors": len(elastic.tensors),
        "rounds": len(steps),
        "seconds_plain": float(np.median([pair[0] for pair in steps])),
        "seconds_elastic": float(np.median([pair[1] for pair in steps])),
        "overhead": float(np.median(ratios)) - 1.0,
        "spread": float(np.subtract(*np.quantile(ratios, (0.75, 0.25)))) / 2,
        "ratios": ratios,
        "first_step_plain": first[0],
        "first_step_elastic": first[1],
        "new_mask_seconds": float(np.median(new)),
    }


def fit(model: tf.keras.Model, data: tf.data.Dataset) -> list[float]:
    """Seconds of the steps of one short `fit`."""
    times = StepTimes()
    model.fit(data, steps_per_epoch=STEPS, verbose=0, callbacks=[times])
    return times.seconds


def new_mask(model: et.ElasticModel, data: tf.data.Dataset, mask: np.ndarray) -> float:
    """Seconds of the first step under `mask` beyond those that follow."""
    model.set_mask(mask)
    first, *later = fit(model, data)
    traces = model.train_tf_function.experimental_get_tracing_count()
    if traces != 1:
        raise RuntimeError(f"A new mask must cost one trace. Received: {traces} traces.")
    return first - float(np.median(later))


COLUMNS = (
    "model tensors:d seconds_plain:.4f seconds_elastic:.4f overhead:+.2% spread:.2% "
    "first_step_plain:.2f new_mask_seconds:.2f"
).split()

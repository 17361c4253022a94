"""What a cached prefix saves, what filling it costs, and how well both are predicted.

For each model everything from a quarter, half and three quarters of its tensors on is trained.
Steps that take cached activations, the same steps run whole, and full steps are timed in turn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from measuring import BATCH, fresh, noise, of_models
from row_steps import RowStep

import elastic_tf as et
from elastic_tf.files import format_table
from elastic_tf.timing.stopwatch import time_in_turn
from elastic_tf.train import optimizers
from elastic_tf.train.engine.rows import RowTraining
from elastic_tf.train.inputs.samples import Rows

MODELS = (  # name, width multiplier, input size in pixels
    ("mobilenet", 0.75, 128),
    ("mobilenet_v2", 1.0, 128),
    ("resnet50", 1.0, 128),
    ("vit_ti16", 1.0, 96),
)
CUTS = (0.25, 0.5, 0.75)  # of the tensors
SAMPLES, ROUNDS, WARM_UP = 128, 9, 2


def main(names: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure all models, or those named; print a table."""
    results = of_models(measure, MODELS, names)
    rows = [{"model": name, **cut} for name, data in results.items() for cut in data["cuts"]]
    print(format_table(rows, COLUMNS))
    errors = [abs(row["predicted"] - row["measured"]) for row in rows]
    print(f"Predicted ratio off by {np.mean(errors):.3f} on average, {max(errors):.3f} at worst.")
    return results


def measure(name: str, alpha: float, size: int) -> dict[str, Any]:
    """All cuts of one model."""
    model = fresh(name, size, alpha=alpha, optimizer="adam")
    rng = np.random.default_rng(0)
    samples = et.Samples(*noise(size, SAMPLES), batch_size=BATCH)
    profile = et.profile_model(model, *samples.take(tf.range(BATCH, dtype=tf.int64)), repeats=15)
    optimizers.build(model.optimizer, model.trainable_variables)
    count, rows = len(model.tensors), RowTraining(model, samples)
    uncached = et.Samples(*samples.arrays, batch_size=BATCH, memory=0)
    cuts = []
    for share in CUTS:
        mask = np.arange(count) >= round(share * count)
        trained = [tensor for tensor, on in zip(model.tensors, mask) if on]
        rows.close()
        started = time.perf_counter()
        rows.cache(trained, epochs=2)
        seconds = time.perf_counter() - started
        cache = rows.kept(trained)
        runs = [
            RowStep(model, np.ones(count, bool), uncached),
            RowStep(model, mask, uncached),
            RowStep(model, mask, samples),
        ]
        for run in runs * WARM_UP:
            run(Rows(tf.range(BATCH, dtype=tf.int64)))
        drawn = Rows(tf.constant(rng.integers(0, SAMPLES, BATCH)))
        steps = time_in_turn(runs, drawn, repeats=ROUNDS)
        ratio = np.median(steps[:, 1:] / steps[:, :1], axis=0)
        cuts.append(
            {
                "cut": share,
                "step_full": float(np.median(steps[:, 0])) / 1e3,
                "uncached": float(ratio[0]),
                "measured": float(ratio[1]),
                "predicted": profile.with_cached_prefix().step_time(mask) / profile.t_full,
                "fill_ms": 1e3 * seconds / SAMPLES,
                "bytes": sum(part.nbytes for part in cache._arrays) / SAMPLES if cache else 0,
            }
        )
    return {"t_forward": profile.t_forward, "t_full": profile.t_full, "cuts": cuts}


COLUMNS = (
    "model cut:.2f step_full:.1f uncached:.3f measured:.3f predicted:.3f fill_ms:.2f bytes:,.0f"
).split()

"""A probe that cannot be read in the middle of a training."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from faults.children import Trial, start, whole
from interrupted import arrays

import elastic_tf as et


def rows(kills: int, jobs: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Kill such trainings a fortieth as often as `kills` says; they end alike in any case."""
    usual = whole(options=_broken)

    def begin(folder: Path, out: Path, rng: random.Random) -> int:
        after = (rng.uniform(0.3, 1.2) * usual.seconds, signal.SIGKILL)
        return start(folder, out, after=after, options=_broken)

    trial = Trial("probe that raises in mid-training, kill -9", usual.outcome, begin)
    yield trial.row(max(kills // 40, 1), jobs=jobs, rng=rng)


def _broken() -> dict[str, Any]:
    """A probe whose third batch cannot be read; it is drawn for the second selection."""
    x, y = arrays()
    x[10] = np.nan

    def checked(features: Any, label: Any) -> Any:
        return tf.debugging.check_numerics(features, "a damaged sample"), label

    probe = tf.data.Dataset.from_tensor_slices((x, y)).map(checked).batch(4)
    return {"probe": probe, "importance": et.importance.weight_magnitude, "interval": 1}

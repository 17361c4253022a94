"""What the paper measures without a training: its solver, and profiling at run time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf
from paper_scales import Scale
from paper_selection import paper_selection
from paper_specs import CUB, RESNET

from elastic_tf.budget.step_costs import REPEATS
from elastic_tf.commands.training import harness
from elastic_tf.timing.profiler import Profiler

_RHO = 0.5
_RESOLUTIONS = (100, 300, 1_000, 3_000, 10_000)
_DRAWS = 3
_REPEATS = 5  # timed steps behind each median


def solver(scale: Scale) -> dict[str, Any]:
    """Figures 13a and 13b: the paper's recurrence at several resolutions, our selector beside it.

    Importance is drawn at random; times are those of a measured profile.
    """
    profile = _profile(scale, RESNET)[1]
    draws = np.random.default_rng(0).exponential(size=(_DRAWS, profile.count))
    rows = []
    for resolution in _RESOLUTIONS:
        started = time.perf_counter()
        found = [paper_selection(draw, profile, _RHO, resolution) for draw in draws]
        seconds = (time.perf_counter() - started) / _DRAWS
        times = [profile.step_time(one.mask) / profile.t_full for one in found]
        rows.append(
            {
                "resolution": resolution,
                "subproblems": found[0].subproblems,
                "all_subproblems": found[0].all_subproblems,
                "seconds": seconds,
                "achieved_ratio": float(np.mean(times)),
            }
        )
    ours = [et.select_tensors(draw, profile, _RHO) for draw in draws]
    return {
        "rho": _RHO,
        "tensors": profile.count,
        "rows": rows,
        "ours": {
            "seconds": float(np.median([one.solve_seconds for one in ours])),
            "achieved_ratio": float(np.mean([one.time for one in ours])) / profile.t_full,
        },
        # of an interval of 3 epochs, before each of which it is solved once
        "training_seconds": 3 * _epoch_seconds(scale, profile),
    }


def profiling(scale: Scale) -> dict[str, Any]:
    """Table 1: seconds of profiling again / seconds of an epoch at rho 0.5, on CUB-200."""
    return {name: _profiling(scale, name) for name in scale.timed}


def _profiling(scale: Scale, name: str) -> dict[str, float]:
    model, profile, batch = _profile(scale, name)
    again = Profiler(model, *batch, calibration=profile.calibration)
    taken = []
    for _ in range(3):  # the first time traces the steps
        started = time.perf_counter()
        again.measure(repeats=REPEATS, settled=False)
        taken.append(time.perf_counter() - started)
    seconds = float(np.mean(taken[1:]))
    epoch_seconds = _epoch_seconds(scale, profile)
    return {
        "seconds": seconds,
        "epoch_seconds": epoch_seconds,
        "overhead": seconds / epoch_seconds,
    }


def _epoch_seconds(scale: Scale, profile: et.TimingProfile) -> float:
    """An epoch of elastic training."""
    steps = scale.images[CUB] // scale.common["batch_size"]
    return 1e-6 * profile.t_full * _RHO * steps


def _profile(
    scale: Scale, name: str
) -> tuple[et.ElasticModel, et.TimingProfile, tuple[np.ndarray, np.ndarray]]:
    """A model with random weights, its profile, and the batch that it was measured on."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(0)
    options: Mapping[str, Any] = scale.timed[name]
    classes = scale.classes[CUB]
    model = harness.compiled(et.zoo.build(classes=classes, **options), "sgdw", 1e-4)
    rng = np.random.default_rng(0)
    size = scale.common["batch_size"]
    x = rng.uniform(0, 255, (size, *model.input_shape[1:])).astype(np.float32)
    batch = (x, rng.integers(0, classes, size))
    return model, et.profile_model(model, *batch, repeats=_REPEATS), batch


# By the names in `paper_specs`.
MEASURES: dict[str, Callable[[Scale], dict[str, Any]]] = {
    "solver": solver,
    "profiling": profiling,
}

"""What the paper measures without a training: its solver, and profiling at run time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
from bench_solver import RHO, against_paper
from measuring import Batch, fresh, noise
from paper_scales import Scale
from paper_specs import CUB, RESNET

from elastic_tf.choose.budget.prior import prior_profile

_RESOLUTIONS = (100, 300, 1_000, 3_000, 10_000)
_REPEATS = 5  # timed steps behind each median


def solver(scale: Scale) -> dict[str, Any]:
    """Figures 13a and 13b: the paper's recurrence at several resolutions, our selector beside it.

    Importance is drawn at random; times are those of a measured profile.
    """
    profile = _profile(scale, RESNET)[1]
    rows = against_paper(profile, _RESOLUTIONS)
    # of an interval of 3 epochs, before each of which it is solved once
    return {"rho": RHO, "rows": rows, "training_seconds": 3 * _epoch_seconds(scale, profile)}


def profiling(scale: Scale) -> dict[str, Any]:
    """Table 1: seconds of foretelling the times / seconds of an epoch at rho 0.5, on CUB-200."""
    found = {}
    for name in scale.timed:
        model, profile, batch = _profile(scale, name)
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            prior_profile(model, batch[0])
            taken.append(time.perf_counter() - started)
        seconds, of_epoch = float(np.mean(taken)), _epoch_seconds(scale, profile)
        told = {"seconds": seconds, "epoch_seconds": of_epoch, "overhead": seconds / of_epoch}
        found[name] = told
    return found


def _epoch_seconds(scale: Scale, profile: et.TimingProfile) -> float:
    """An epoch of elastic training."""
    return 1e-6 * profile.t_full * RHO * (scale.images // scale.common["batch_size"])


def _profile(scale: Scale, name: str) -> tuple[et.ElasticModel, et.TimingProfile, Batch]:
    """A model with random weights, its profile, and the batch that it was measured on."""
    classes = scale.classes[CUB]
    model = fresh(*scale.timed[name], classes=classes)
    batch = noise(model.input_shape[1], scale.common["batch_size"], classes=classes)
    return model, et.profile_model(model, *batch, repeats=_REPEATS), batch


# By the names in `paper_specs`.
MEASURES: dict[str, Callable[[Scale], dict[str, Any]]] = {
    "solver": solver,
    "profiling": profiling,
}

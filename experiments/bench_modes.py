"""Modes of kernels: what measuring them costs, and how well steps of mixed plans are foretold.

For each model: seconds of a profile without modes and with three, from a fresh model each; random
plans in which every trained kernel has one of the modes that it can have, their steps timed in turn
with the full step, against what the profile predicts. Beside them the bytes that activations take
where all kernels are trained exactly and where all that can be are filtered.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from measuring import MODELS, columns, fresh, measure_ratios, noise, random_mask

import elastic_tf as et
from elastic_tf.files.table import format_table
from elastic_tf.memory.activations import activation_bytes
from elastic_tf.train.engine import modes

MODES = ("filtered:2", "filtered:4", "channels:1/4")
PLANS, ROUNDS, REPEATS = 12, 11, 10
COLUMNS = columns(
    "model without:.1f with_modes:.1f times:.2f error:.3f bias:+.3f worst:.3f exact_bytes:.1f "
    "filtered_bytes:.1f"
)


def main(names: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure all models, or those named; print a table."""
    models = [model for model in MODELS if names is None or model[0] in names]
    results = {}
    for model in models:
        results[model[0]] = measure(*model)
        print(format_table([summary(model[0], results[model[0]])], COLUMNS), flush=True)
    return results


def measure(name: str, alpha: float, size: int) -> dict[str, Any]:
    """One model."""
    rng = np.random.default_rng(0)
    batch = noise(size)
    model = fresh(name, size, alpha=alpha, optimizer="adam")
    able = {mode: modes.kernels(model, mode) for mode in MODES}
    able = {mode: kernels for mode, kernels in able.items() if kernels.any()}
    seconds = {}
    for what, given in (("without", ()), ("with_modes", tuple(able))):
        model = fresh(name, size, alpha=alpha, optimizer="adam")
        started = time.perf_counter()
        profile = et.profile_model(model, *batch, modes=given, repeats=REPEATS)
        seconds[what] = time.perf_counter() - started
    plans = [mixed(rng, model, profile.count, able) for _ in range(PLANS)]
    is_kernel = np.any([*able.values()], axis=0)
    filtered = et.Plan.from_mask(is_kernel)
    if "filtered:2" in able:
        filtered = filtered.filtered(2, able["filtered:2"])
    return {
        **seconds,
        "measured": measure_ratios(model, batch, plans, repeats=ROUNDS),
        "predicted": [profile.step_time(plan) / profile.t_full for plan in plans],
        "plans": [plan.to_json() for plan in plans],
        "exact_bytes": activation_bytes(model, batch, is_kernel),
        "filtered_bytes": activation_bytes(model, batch, filtered),
    }


def mixed(
    rng: np.random.Generator, model: et.ElasticModel, count: int, able: dict[str, np.ndarray]
) -> et.Plan:
    """A random mask, and a random mode of those it can have for each of its kernels."""
    mask = random_mask(rng, count)
    plan = et.Plan.from_mask(mask)
    for k in np.flatnonzero(mask & np.any([*able.values()], axis=0)).tolist():
        mode = rng.choice(["exact", *(name for name, kernels in able.items() if kernels[k])])
        axis = modes.channel_axes(model, mode).get(k) if mode != "exact" else None
        if axis is not None:
            most = int(model.tensors[k].shape[axis])
            first = int(rng.integers(most - most // 4 + 1))
            plan = plan.with_channels(mode, {k: range(first, first + max(most // 4, 1))})
        elif mode != "exact":
            plan = plan.with_mode(mode, np.arange(count) == k)
    return plan


def summary(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    off = np.array(data["predicted"]) - np.array(data["measured"])
    return {
        "model": name,
        "without": data["without"],
        "with_modes": data["with_modes"],
        "times": data["with_modes"] / data["without"],
        "error": np.abs(off).mean(),
        "bias": off.mean(),
        "worst": np.abs(off).max(),
        **{key: data[key] / 1e6 for key in ("exact_bytes", "filtered_bytes")},
    }

"""Which importance foretells best what training a set of tensors wins.

From each of several moments of a training, random masks of equal cost (equal step time under a
measured profile, the head trained in all) are trained for one epoch. An importance is as good as
the rank correlation of its sum over the mask with the loss decrease that was reached: on held-out
images, which decides, and on the training images. Then how importance changes over a training
(the paper's Figures 7a and 7b).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import importance_drift
import mask_trials
import numpy as np
import tensorflow as tf
from mask_trials import Case, State

from elastic_tf import importance
from elastic_tf.runs import Column, format_table

PROBE = 64
DRAWS = 500  # of the bootstrap
DEFAULT = "other half, 1 step"
READINGS = {"before": "before", "after": "after", "other": "other half"}
# What the share of the cost refers to.
STEPS_PER_EPOCH, INTERVAL = 1_500, 3


def main() -> dict[str, Any]:
    """Try all cases, print four tables."""
    results = {}
    for case in mask_trials.cases():
        results[case.name] = measure(case)
        print(f"{case.name}: {results[case.name]['seconds']:.0f} s", flush=True)
    rng = np.random.default_rng(0)
    tables = {part: summary(results, part, rng) for part in ("held_out", "train")}
    columns = [Column("importance", "importance")]
    columns += [Column(name, name, "+.2f") for name in results]
    columns += [
        Column("mean", "mean", "+.2f"),
        Column("interval", "95 %"),
        Column("difference", "against default", "+.2f"),
        Column("difference_interval", "95 %"),
    ]
    for part, rows in tables.items():
        print(f"\nRank correlation with the loss decrease, {part.replace('_', '-')} images")
        print(format_table(rows, columns))
    print("\nCost of the default")
    print(format_table([{"case": name, **data["cost"]} for name, data in results.items()], COST))
    drift = importance_drift.measure()
    importance_drift.show(drift)
    return {"cases": results, "tables": tables, "drift": drift}


def measure(case: Case) -> dict[str, Any]:
    """All importances and all masks of one case."""
    started = time.perf_counter()
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(0)
    model = mask_trials.compiled(case)
    batch = case.train.rows(slice(case.batch_size))
    profile = et.profile_model(model, *batch, repeats=5)
    required = et.zoo.head_tensors(model)
    masks = mask_trials.masks_of_equal_cost(profile, required, case.masks, np.random.default_rng(0))
    moments = mask_trials.states(case, model, PROBE)
    worths = [worths_at(case, model, state) for state in moments]
    seconds = evaluation_seconds(case, model, moments[-1])
    won = mask_trials.decreases(case, model, moments, masks)
    sums = {name: [[w[name][mask].sum() for mask in masks] for w in worths] for name in worths[0]}
    correlations = {
        part: {
            name: [rank_correlation(s, won[part][i]) for i, s in enumerate(sums[name])]
            for name in sums
        }
        for part in won
    }
    training = INTERVAL * STEPS_PER_EPOCH * profile.t_full * 1e-6
    return {
        "tensors": profile.count,
        "states": [state.name for state in moments],
        "masks": [np.flatnonzero(mask) for mask in masks],
        "ratios": [profile.step_time(mask) / profile.t_full for mask in masks],
        "sums": sums,
        "won": won,
        "correlations": correlations,
        "cost": {"seconds": seconds, "full_step": profile.t_full, "share": seconds / training},
        "seconds": time.perf_counter() - started,
    }


def worths_at(case: Case, model: et.ElasticModel, state: State) -> dict[str, np.ndarray]:
    """Every importance at one state: one step from the probe, and all steps of an epoch."""
    mask_trials.restore(model, state.values)
    steps = len(state.epoch.y) // case.batch_size
    size = case.batch_size
    found = {}
    for reading, name in READINGS.items():
        options = {"gradient": reading, "micro_batch_size": size}
        found[f"{name}, 1 step"] = importance.loss_decrease(model, *state.probe, **options)
        # each half of the epoch makes half of its steps
        count = steps // 2 if reading == "other" else steps
        found[f"{name}, epoch"] = importance.loss_decrease(
            model, *state.epoch, **options, steps=count
        )
    found["gradient magnitude"] = importance.gradient_magnitude(
        model, *state.probe, micro_batch_size=size
    )
    found["weight magnitude"] = importance.weight_magnitude(model)
    found["random"] = importance.random(model, seed=len(state.name))
    return found


def evaluation_seconds(case: Case, model: et.ElasticModel, state: State) -> float:
    """Of the default on the probe, when it has been traced."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        importance.loss_decrease(model, *state.probe, micro_batch_size=case.batch_size)
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


def rank_correlation(one: Any, two: Any) -> float:
    """Spearman's; equal values, which a resample has, share their rank."""
    ranks = [_ranks(np.asarray(values)) for values in (one, two)]
    if any(np.ptp(rank) == 0.0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def summary(results: dict[str, Any], part: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    """A line for each importance: means over states, intervals by resampling masks and states."""
    names = list(next(iter(results.values()))["sums"])
    draws = {name: [] for name in names}
    for _ in range(DRAWS):
        again = resampled(results, part, rng)
        for name in names:
            draws[name].append(again(name))
    rows = []
    for name in names:
        by_case = {key: float(np.mean(r["correlations"][part][name])) for key, r in results.items()}
        mean = float(np.mean(list(by_case.values())))
        default = np.mean([np.mean(r["correlations"][part][DEFAULT]) for r in results.values()])
        apart = np.subtract(draws[name], draws[DEFAULT])
        rows.append(
            {
                "importance": name,
                **by_case,
                "mean": mean,
                "interval": _interval(draws[name]),
                "difference": None if name == DEFAULT else mean - float(default),
                "difference_interval": "" if name == DEFAULT else _interval(apart),
            }
        )
    return rows


def resampled(
    results: dict[str, Any], part: str, rng: np.random.Generator
) -> Callable[[str], float]:
    """The mean correlation over one resample of each case's masks and states, by importance."""
    picks = {}
    for key, result in results.items():
        states, masks = np.shape(result["won"][part])
        picks[key] = (rng.integers(states, size=states), rng.integers(masks, size=masks))

    def mean(name: str) -> float:
        by_case = []
        for key, (states, masks) in picks.items():
            sums = np.array(results[key]["sums"][name])
            won = results[key]["won"][part]
            by_case.append(
                np.mean([rank_correlation(sums[i][masks], won[i][masks]) for i in states])
            )
        return float(np.mean(by_case))

    return mean


def _interval(values: Any) -> str:
    low, high = np.quantile(values, (0.025, 0.975))
    return f"{low:+.2f} to {high:+.2f}"


COST = (
    Column("case", "case"),
    Column("seconds", "seconds", ".3f"),
    Column("full_step", "full step us", ".0f"),
    Column("share", "share of 3 x 1,500 steps", ".3%"),
)

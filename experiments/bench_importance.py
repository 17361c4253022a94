"""Which importance predicts best what training a set of tensors wins.

From each of several moments of a training, random masks of equal cost (equal step time under a
measured profile, the head trained in all) are trained for one epoch. An importance is as good as
the rank correlation of its sum over the mask with the loss decrease that was reached on held-out
images. Then how importance changes over a training (the paper's Figures 7a and 7b).
"""

from __future__ import annotations

import time
from typing import Any

import mask_trials
import numpy as np
import tensorflow as tf
from mask_trials import Case, State
from scipy.stats import spearmanr

import elastic_tf as et
from elastic_tf.choose import importance
from elastic_tf.files import format_table

PROBE = 64
DRAWS = 500  # of the bootstrap
DEFAULT = "other half, 1 step"
READINGS = {"before": "before, 1 step", "after": "after, 1 step", "other": DEFAULT}
# What the share of the cost refers to.
STEPS_PER_EPOCH, INTERVAL = 1_500, 3
COST = "case seconds:.3f full_step:.0f share:.3%".split()
EPOCHS = 18  # of the training in which importance changes
PROBES, REFERENCE = (4, 16, 64, 256), 256
LAGS = (0, 1, 2, 3, 4, 6, 8, 12)


def main() -> dict[str, Any]:
    """Try all cases, print the tables."""
    results = {}
    for case in mask_trials.cases():
        results[case.name] = measure(case)
        print(f"{case.name}: {results[case.name]['seconds']:.0f} s", flush=True)
    rows = summary(results, np.random.default_rng(0))
    shown = ["importance", *(f"{name}:+.2f" for name in [*results, "mean"]), "interval"]
    print("\nRank correlation with the loss decrease on held-out images")
    print(format_table(rows, shown))
    print("\nCost of the default")
    print(format_table([{"case": name, **data["cost"]} for name, data in results.items()], COST))
    changes = drift()
    print("\nCosine similarity of the importance of two epochs, and the share of the importance")
    print(f"(on {REFERENCE} images) that a selection of some epochs before keeps, by probe size")
    shown = [f"{what} {size}:.2f" for what in ("similarity", "kept") for size in PROBES]
    print(format_table(changes["lags"], ["lag", *shown]))
    return {"cases": results, "tables": {"held-out images": rows}, "drift": changes}


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
    training = INTERVAL * STEPS_PER_EPOCH * profile.t_full * 1e-6
    return {
        "tensors": profile.count,
        "states": [state.name for state in moments],
        "masks": ["".join("01"[int(chosen)] for chosen in mask) for mask in masks],
        "ratios": [round(profile.step_time(mask) / profile.t_full, 4) for mask in masks],
        "sums": {name: _rounded(values) for name, values in sums.items()},
        "won": {"held_out": _rounded(won)},
        "cost": {"seconds": seconds, "full_step": profile.t_full, "share": seconds / training},
        "seconds": time.perf_counter() - started,
    }


def worths_at(case: Case, model: et.ElasticModel, state: State) -> dict[str, np.ndarray]:
    """Every importance at one state."""
    mask_trials.restore(model, state.values)
    options: dict[str, Any] = {"micro_batch_size": case.batch_size}
    found = {
        name: importance.loss_decrease(model, *state.probe, gradient=reading, **options)
        for reading, name in READINGS.items()
    }
    found["gradient magnitude"] = importance.gradient_magnitude(model, *state.probe, **options)
    found["weight magnitude"] = importance.weight_magnitude(model)
    found["random"] = 1.0 - np.random.default_rng(len(state.name)).random(len(model.tensors))
    return found


def evaluation_seconds(case: Case, model: et.ElasticModel, state: State) -> float:
    """Of the default on the probe, when it has been traced."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        importance.loss_decrease(model, *state.probe, micro_batch_size=case.batch_size)
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


def summary(results: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """A line for each importance: means over states, intervals by resampling masks and states."""
    draws = [correlations(results, rng) for _ in range(DRAWS)]
    rows = []
    for name, by_case in correlations(results, None).items():
        drawn = [np.mean(list(draw[name].values())) for draw in draws]
        low, high = np.quantile(drawn, (0.025, 0.975))
        mean, said = float(np.mean(list(by_case.values()))), f"{low:+.2f} to {high:+.2f}"
        rows.append({"importance": name, **by_case, "mean": mean, "interval": said})
    return rows


def correlations(
    results: dict[str, Any], rng: np.random.Generator | None
) -> dict[str, dict[str, float]]:
    """By importance and case, mean over the states; over a resample of both if there is `rng`."""
    found: dict[str, dict[str, float]] = {}
    for case, result in results.items():
        won = np.array(result["won"]["held_out"])
        states, masks = (np.arange(size) for size in won.shape)
        if rng is not None:
            states, masks = rng.choice(states, len(states)), rng.choice(masks, len(masks))
        for name, values in result["sums"].items():
            sums = np.array(values)
            each = [spearmanr(sums[i][masks], won[i][masks]).statistic for i in states]
            found.setdefault(name, {})[case] = float(np.mean(each))
    return found


def _rounded(values: Any) -> list[list[float]]:
    return [[float(f"{value:.5g}") for value in row] for row in values]


def drift() -> dict[str, Any]:
    """One elastic training on the digits; importance on probes of several sizes at each epoch."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(0)
    case = next(mask_trials.cases())
    model = mask_trials.compiled(case)
    profile = et.profile_model(model, *case.train.rows(slice(case.batch_size)), repeats=5)
    required = et.zoo.head_tensors(model)
    rng = np.random.default_rng(0)
    worths: dict[int, list[np.ndarray]] = {size: [] for size in PROBES}
    for epoch in range(EPOCHS):
        for size in PROBES:
            probe = case.train.rows(rng.permutation(len(case.train.y))[:size])
            worths[size].append(
                importance.loss_decrease(
                    model, *probe, micro_batch_size=min(case.batch_size, size // 2)
                )
            )
        if epoch % INTERVAL == 0:
            chosen = et.select_tensors(worths[64][-1], profile, mask_trials.RHO, required=required)
            model.set_mask(chosen.mask)
        order = rng.permutation(len(case.train.y))
        mask_trials.train_epoch(model, case.train.rows(order), case.batch_size)
    masks = {
        size: [
            et.select_tensors(w, profile, mask_trials.RHO, required=required).mask for w in series
        ]
        for size, series in worths.items()
    }
    return {
        "epochs": EPOCHS,
        "lags": [
            {"lag": lag}
            | {f"similarity {size}": similarity(worths[size], lag) for size in PROBES}
            | {
                f"kept {size}": kept(worths[REFERENCE], mask, masks[REFERENCE], lag)
                for size, mask in masks.items()
            }
            for lag in LAGS
        ],
    }


def similarity(worths: list[np.ndarray], lag: int) -> float:
    """Mean cosine similarity of evaluations that are `lag` epochs apart."""
    pairs = zip(worths, worths[lag:])
    cosines = [a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) for a, b in pairs]
    return float(np.mean(cosines))


def kept(
    worths: list[np.ndarray], masks: list[np.ndarray], best: list[np.ndarray], lag: int
) -> float:
    """Importance of the selections made `lag` epochs before / of the best ones now."""
    then = sum(worth[mask].sum() for worth, mask in zip(worths[lag:], masks))
    now = sum(worth[mask].sum() for worth, mask in zip(worths[lag:], best[lag:]))
    return float(then / now)

"""How importance changes over a training: the paper's Figures 7a and 7b."""

from __future__ import annotations

from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import mask_trials
import numpy as np
import tensorflow as tf

from elastic_tf.choose.importance import measures
from elastic_tf.files.table import format_table

EPOCHS, INTERVAL = 18, 3
PROBES = (4, 16, 64, 256)
REFERENCE = 256
LAGS = (1, 2, 3, 4, 6, 8, 12)


def measure() -> dict[str, Any]:
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
                measures.loss_decrease(
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
            for lag in (0, *LAGS)
        ],
        "to_reference": {
            size: float(np.mean([cosine(a, b) for a, b in zip(worths[size], worths[REFERENCE])]))
            for size in PROBES
            if size != REFERENCE
        },
    }


def show(drift: dict[str, Any]) -> None:
    """Print the tables."""
    print("\nCosine similarity of the importance of two epochs, and the share of the importance")
    print(f"(on {REFERENCE} images) that a selection of some epochs before keeps, by probe size")
    shown = [f"{what} {size}:.2f" for what in ("similarity", "kept") for size in PROBES]
    print(format_table(drift["lags"], ["lag", *shown]))
    print(f"\nCosine similarity with the importance on {REFERENCE} other images of the same epoch")
    row = {f"{size} images": value for size, value in drift["to_reference"].items()}
    print(format_table([row], [f"{name}:.2f" for name in row]))


def similarity(worths: list[np.ndarray], lag: int) -> float:
    """Mean cosine similarity of evaluations that are `lag` epochs apart."""
    return float(np.mean([cosine(a, b) for a, b in zip(worths, worths[lag:])]))


def kept(
    worths: list[np.ndarray], masks: list[np.ndarray], best: list[np.ndarray], lag: int
) -> float:
    """Importance of the selections made `lag` epochs before / of the best ones now."""
    then = sum(worth[mask].sum() for worth, mask in zip(worths[lag:], masks))
    now = sum(worth[mask].sum() for worth, mask in zip(worths[lag:], best[lag:]))
    return float(then / now)


def cosine(one: np.ndarray, two: np.ndarray) -> float:
    """Of the angle between two vectors."""
    return float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))

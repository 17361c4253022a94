"""Memory of a step: predicted op by op from its trace, and measured by TensorFlow's allocator.

Random plans of five networks, and selections under limits of memory. The peak of a step is measured
beyond what is there when it begins; weights and slots are counted by their sizes, for the
allocator's statistics know some of them only."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from measuring import DEVICE, allocated_bytes, fresh, noise, of_models

import elastic_tf as et
from elastic_tf.files import format_table
from elastic_tf.plan import Plan

NETWORKS = (  # name, input size, batch size
    ("mobilenet", 64, 16),
    ("mobilenet_v2", 64, 16),
    ("resnet50", 64, 8),
    ("vgg16", 32, 16),
    ("vit_ti16", 64, 32),
)
PLANS, STEPS = 20, 5
SHARES = (0.8, 0.6, 0.4)  # of the way from the smallest step to the full one


def main(names: Sequence[str] | None = None) -> dict[str, Any]:
    """Predict, measure, print: all networks, or those named."""
    found = of_models(network, NETWORKS, names)
    print(format_table([summary(name, rows) for name, rows in found.items()], COLUMNS))
    return found


def summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean errors over the random plans, and the most that a selection was over its limit."""
    own = [row for row in rows if row["kind"] == "random"]
    limits = [row for row in rows if row["kind"] == "limit"]

    def error(predicted: str, measured: str) -> float:
        return statistics.mean(abs(row[predicted] / row[measured] - 1) for row in own)

    return {
        "model": name,
        "error": error("predicted", "measured"),
        "step_error": error("predicted_step", "measured_step"),
        "over": max((row["measured"] / row["limit"] - 1 for row in limits), default=0.0),
        "seconds": max((row["seconds"] for row in limits), default=0.0),
    }


def network(name: str, size: int, batch: int) -> list[dict[str, Any]]:
    """The rows of one network."""
    model = fresh(name, size, optimizer="adam")
    rng = np.random.default_rng(0)
    x, y = map(tf.identity, noise(size, batch))
    count = len(model.tensors)
    limit = et.memory.Limit(1, model, (x, y))
    found = []
    for _ in range(PLANS):
        mask = np.arange(count) >= rng.integers(0, count)
        mask &= rng.uniform(size=count) < rng.uniform(0.2, 1.0)
        mask[-1] = True
        found.append({"kind": "random", **compared(model, limit, mask, x, y)})
    profile = et.TimingProfile.from_chain(
        t_dw=np.ones(count), t_dy=np.ones(count), t_forward=float(count)
    )
    least = limit.peak(Plan.from_mask(np.arange(count) == count - 1))
    full = limit.peak(Plan.full(count))
    for share in SHARES:
        limit.bytes = round(least + share * (full - least))
        worth = rng.uniform(0.5, 1.0, count)
        chosen = et.select_tensors(worth, profile, 1.0, memory=limit)
        row = compared(model, limit, chosen.mask, x, y, largest=True)
        seconds = chosen.solve_seconds
        found.append({"kind": "limit", "limit": limit.bytes, "seconds": seconds, **row})
    return found


def compared(
    model: Any, limit: Any, mask: np.ndarray, x: Any, y: Any, *, largest: bool = False
) -> dict[str, Any]:
    """Bytes predicted for a plan, and measured: the median of some steps, or the largest."""
    model.set_mask(mask)
    function = tf.function(model.train_step, autograph=False)
    for _ in range(2):
        function((x, y))
    gc.collect()
    before = allocated_bytes("current")
    peaks = []
    for _ in range(STEPS):
        tf.config.experimental.reset_memory_stats(DEVICE)
        function((x, y))
        peaks.append(allocated_bytes("peak"))
    peak = max(peaks) if largest else statistics.median(peaks)
    predicted = limit.peak(Plan.from_mask(mask))
    return {
        "trained": int(mask.sum()),
        "predicted": predicted,
        "measured": limit.held + peak - before,
        "predicted_step": predicted - limit.held,
        "measured_step": peak - before,
    }


COLUMNS = "model error:.1% step_error:.1% over:.1% seconds:.2f".split()

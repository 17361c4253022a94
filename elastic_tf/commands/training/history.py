"""What the epochs of a run say of it: what was trained, seconds, memory, energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elastic_tf.files.ranges import from_ranges

Epochs = Sequence[Mapping[str, Any]]


def trained_masks(history: Epochs) -> list[np.ndarray]:
    """The mask at the end of each epoch."""
    return [from_ranges(epoch["trained"], epoch["tensors"]) for epoch in history]


def summary(history: Epochs) -> dict[str, Any]:
    """What a run's history says of the whole run."""
    seconds, steps, beside, evaluation = (
        sum(epoch[key] for epoch in history)
        for key in ("seconds", "steps", "overhead_seconds", "evaluation_seconds")
    )
    energies = [epoch["energy_joules"] for epoch in history]
    unknown = [one for one in ("no sensor", None) if one in energies]
    return {
        "accuracy": history[-1]["val_accuracy"],
        "loss": history[-1]["val_loss"],
        "training_seconds": seconds,
        "seconds_with_evaluation": seconds + evaluation,
        "seconds_per_step": seconds / steps,
        "steps": steps,
        "epochs": len(history),
        "share_beside_steps": beside / seconds,  # selecting, tracing and timing
        "peak_memory_bytes": max(epoch["peak_memory_bytes"] for epoch in history),
        "energy_joules": unknown[0] if unknown else float(sum(energies)),
    }

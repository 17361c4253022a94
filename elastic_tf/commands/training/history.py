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
    seconds, steps = _total(history, "seconds"), _total(history, "steps")
    energies = [epoch["energy_joules"] for epoch in history]
    unknown = [one for one in ("no sensor", None) if one in energies]
    return {
        "accuracy": history[-1]["val_accuracy"],
        "loss": history[-1]["val_loss"],
        "training_seconds": seconds,
        "seconds_with_evaluation": seconds + _total(history, "evaluation_seconds"),
        "seconds_per_step": seconds / max(steps, 1),
        "steps": steps,
        "epochs": len(history),
        "share_beside_steps": share_beside_steps(history),
        "peak_memory_bytes": max(epoch["peak_memory_bytes"] for epoch in history),
        "energy_joules": unknown[0] if unknown else float(sum(energies)),
    }


def share_beside_steps(history: Epochs) -> float:
    """Share of the training seconds that went into selecting, tracing and timing, in [0, 1)."""
    seconds = _total(history, "seconds")
    return float(_total(history, "overhead_seconds") / seconds) if seconds else 0.0


def _total(history: Epochs, key: str) -> Any:
    return sum(epoch[key] for epoch in history)

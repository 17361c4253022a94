"""What the epochs of a run say of it: what was trained, seconds, operations, time to accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elastic_tf.files.ranges import from_ranges


def trained_masks(history: Sequence[Mapping[str, Any]]) -> list[np.ndarray]:
    """The mask at the end of each epoch."""
    return [from_ranges(epoch["trained"], epoch["tensors"]) for epoch in history]


def summary(history: Sequence[Mapping[str, Any]], targets: Sequence[float] = ()) -> dict[str, Any]:
    """What a run's history says of the whole run.

    `share_beside_steps` is as the function of that name has it; `seconds_to` the training seconds
    after which an accuracy was first reached, None where it was not.
    """
    total = sum(epoch["seconds"] for epoch in history)
    evaluating = sum(epoch["evaluation_seconds"] for epoch in history)
    steps = sum(epoch["steps"] for epoch in history)
    return {
        "accuracy": history[-1]["val_accuracy"],
        "loss": history[-1]["val_loss"],
        "training_seconds": total,
        "seconds_with_evaluation": total + evaluating,
        "seconds_per_step": total / max(steps, 1),
        "steps": steps,
        "epochs": len(history),
        "share_beside_steps": share_beside_steps(history),
        "flops": _total_flops(history),
        "peak_memory_bytes": max(epoch["peak_memory_bytes"] for epoch in history),
        "activation_bytes": _largest(history, "activation_bytes"),
        "energy_joules": _total_energy(history),
        "seconds_to": {f"{target:g}": seconds_to(history, target) for target in targets},
    }


def share_beside_steps(history: Sequence[Mapping[str, Any]]) -> float:
    """Share of the training seconds that went into selecting, tracing and timing, in [0, 1)."""
    total = sum(epoch["seconds"] for epoch in history)
    beside = sum(epoch["overhead_seconds"] for epoch in history)
    return float(beside / total) if total else 0.0


def seconds_to(history: Sequence[Mapping[str, Any]], target: float) -> float | None:
    """Training seconds after which the accuracy was first at least `target`."""
    passed = 0.0
    for epoch in history:
        passed += epoch["seconds"]
        if epoch["val_accuracy"] >= target:
            return passed
    return None


def targets_of(text: str) -> tuple[float, ...]:
    """Accuracies from a command line: separated by commas; empty for none.

    Raises:
        ValueError: not numbers in (0, 1].
    """
    try:
        targets = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        targets = (float("nan"),)
    if not all(0 < target <= 1 for target in targets):
        raise ValueError(
            f"`targets` must be accuracies in (0, 1]. Received: {text!r}. Use 0.7,0.8."
        )
    return targets


def _largest(history: Sequence[Mapping[str, Any]], key: str) -> int | None:
    """Over all epochs; None where one is not known."""
    values: list[Any] = [epoch.get(key) for epoch in history]
    return None if None in values else max(values)


def _total_energy(history: Sequence[Mapping[str, Any]]) -> float | str | None:
    """Joules of all epochs; "no sensor", or None where the sensor failed."""
    energies = [epoch["energy_joules"] for epoch in history]
    for instead in (None, "no sensor"):
        if instead in energies:
            return instead
    return float(sum(energies))


def _total_flops(history: Sequence[Mapping[str, Any]]) -> float | None:
    """Operations of all steps; None where they were not counted."""
    if any("flops_per_step" not in epoch for epoch in history):
        return None
    parts = ("forward", "backward", "update")
    return float(
        sum(
            epoch["steps"] * sum(epoch["flops_per_step"][part] for part in parts)
            for epoch in history
        )
    )

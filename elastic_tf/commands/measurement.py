"""What is measured of a training beside its course: step ratios, operations, time to accuracies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf import optimizers
from elastic_tf.activations import activations
from elastic_tf.batches import as_batch
from elastic_tf.flops import Flops, step_flops
from elastic_tf.ranges import from_ranges
from elastic_tf.state import kept
from elastic_tf.stopwatch import time_in_turn
from elastic_tf.trace import StepFunction

_WARM_UP = 3  # steps that allocate and fill caches


class Speed(NamedTuple):
    """Steps of a method against full steps, timed in turn."""

    ratio: float  # mean over epochs of step time / full step time
    full_step_seconds: float  # of a full step, as fast as the machine was then


def speed(
    epochs: Sequence[tuple[et.ElasticModel, np.ndarray]],
    full: et.ElasticModel,
    batch: tuple[Any, Any],
    *,
    repeats: int = 10,
) -> Speed:
    """Step time in the epochs of a training / full step time; leaves nothing behind.

    Args:
        epochs: what each epoch trained, a compiled model and its mask; equal ones are timed once.
        full: what full training trains, compiled alike; the same model where the method trains
            the same network.
        batch: images and labels.
        repeats: timed steps of each kind.
    """
    data = as_batch(*batch)
    optimizers.build(full.optimizer, full.trainable_variables)
    whole = StepFunction(full, np.ones(len(full.tensors), bool))
    distinct = {(id(model), mask.tobytes()): (model, mask) for model, mask in epochs}
    ratios, seconds = {}, []
    for key, (model, mask) in distinct.items():
        optimizers.build(model.optimizer, model.trainable_variables)
        is_full = model is full and mask.all()
        steps = [whole] if is_full else [whole, StepFunction(model, mask)]
        with kept(full, [whole.graph(data)]), kept(model, [steps[-1].graph(data)]):
            for run in steps * _WARM_UP:
                run(data)
            times = time_in_turn(steps, data, repeats=repeats)
        ratios[key] = float(np.median(times[:, -1] / times[:, 0]))
        seconds.append(1e-6 * float(np.median(times[:, 0])))
    mean = np.mean([ratios[id(model), mask.tobytes()] for model, mask in epochs])
    return Speed(float(mean), float(np.median(seconds)))


class Cost(NamedTuple):
    """What the graph of a step says.

    Attributes:
        flops: operations.
        activation_bytes: kept for the backward pass; None where the graph does not tell.
    """

    flops: Flops
    activation_bytes: int | None


def counter(
    model: et.ElasticModel, image_shape: Sequence[int], batch_size: int, labels: int | None
) -> Callable[[np.ndarray], Cost]:
    """The cost of a step under a mask, counted once for each mask and network.

    Args:
        model: compiled.
        image_shape: height, width, channels.
        batch_size: images in a step.
        labels: classes that labels are shares of; None where a label is a number.
    """
    x = tf.zeros((batch_size, *image_shape))
    y = tf.zeros(batch_size, tf.int64) if labels is None else tf.zeros((batch_size, labels))
    known: dict[Any, Cost] = {}

    def count(mask: np.ndarray) -> Cost:
        # a method may make the network smaller
        key = (mask.tobytes(), *(tuple(tensor.shape) for tensor in model.tensors))
        if key not in known:
            found = activations(model, (x, y), mask)
            sizes = [activation.bytes for activation in found if activation.bytes is not None]
            held = sum(sizes) if len(sizes) == len(found) else None
            known[key] = Cost(step_flops(model, x, y, mask), held)
        return known[key]

    return count


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
        targets = (np.nan,)
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

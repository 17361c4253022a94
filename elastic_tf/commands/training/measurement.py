"""What is measured of a training after it: step ratios, operations, activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import elastic_tf as et
from elastic_tf import optimizers
from elastic_tf.commands.training.history import trained_masks
from elastic_tf.costs.activations import activations
from elastic_tf.costs.flops import step_flops
from elastic_tf.engine.snapshot import kept
from elastic_tf.inputs.batches import as_batch
from elastic_tf.timing.stopwatch import time_in_turn
from elastic_tf.timing.trace import StepFunction

_WARM_UP = 3  # steps that allocate and fill caches
_LASSO = 0.2  # share of the group lasso in the loss; any takes as long

Epoch = tuple[et.ElasticModel, np.ndarray]  # a compiled model and the mask it was trained under


def result(
    history: Sequence[Mapping[str, Any]],
    model: et.ElasticModel,
    full: et.ElasticModel,
    batch: tuple[Any, Any],
    build: Callable[[], et.ElasticModel],
) -> dict[str, Any]:
    """Step time and operations of a run's epochs, beside those of full training.

    Args:
        history: of the run.
        model: of the run, trained.
        full: what full training trains, compiled alike; the same model where the method trains
            the same network.
        batch: images and labels.
        build: makes `model` as it was before.
    """
    epochs = _epochs_of(history, model, build)
    ratio, full_step_seconds = speed(epochs, full, batch)
    steps, found = [epoch["steps"] for epoch in history], costs(epochs, batch)
    flops = float(np.dot(steps, found["flops_by_epoch"]))
    return {
        "achieved_ratio": ratio,
        "full_step_seconds": full_step_seconds,
        "flops": flops,
        "flops_ratio": flops / (sum(steps) * step_flops(full, *batch).total),
        **found,
    }


class Speed(NamedTuple):
    """Steps of a method against full steps, timed in turn."""

    ratio: float  # mean over epochs of step time / full step time
    full_step_seconds: float  # of a full step, as fast as the machine was then


def speed(
    epochs: Sequence[Epoch], full: et.ElasticModel, batch: tuple[Any, Any], *, repeats: int = 10
) -> Speed:
    """Step time in the epochs of a training / full step time; leaves nothing behind.

    Args:
        epochs: what each epoch trained; equal ones are timed once.
        full: what full training trains.
        batch: images and labels.
        repeats: timed steps of each kind.
    """
    data = as_batch(*batch)
    optimizers.build(full.optimizer, full.trainable_variables)
    whole = StepFunction(full, np.ones(len(full.tensors), bool))
    ratios, seconds = {}, []
    for key, (model, mask) in _distinct(epochs).items():
        optimizers.build(model.optimizer, model.trainable_variables)
        steps = [whole] if model is full and mask.all() else [whole, StepFunction(model, mask)]
        with kept(full, [whole.graph(data)]), kept(model, [steps[-1].graph(data)]):
            for run in steps * _WARM_UP:
                run(data)
            times = time_in_turn(steps, data, repeats=repeats)
        ratios[key] = np.median(times[:, -1] / times[:, 0])
        seconds.append(1e-6 * np.median(times[:, 0]))
    mean = np.mean([ratios[_key(*epoch)] for epoch in epochs])
    return Speed(float(mean), float(np.median(seconds)))


def costs(epochs: Sequence[Epoch], batch: tuple[Any, Any]) -> dict[str, Any]:
    """Operations of a step in each epoch, and the most bytes of activations that a step keeps."""
    flops, sizes = {}, []
    for key, (model, mask) in _distinct(epochs).items():
        flops[key] = step_flops(model, *batch, mask).total
        sizes.append([one.bytes for one in activations(model, batch, mask)])
    known = [sum(one) for one in sizes if None not in one]  # type: ignore[arg-type]
    return {
        "flops_by_epoch": [flops[_key(*epoch)] for epoch in epochs],
        "activation_bytes": max(known) if len(known) == len(sizes) else None,
    }


def _epochs_of(
    history: Sequence[Mapping[str, Any]],
    model: et.ElasticModel,
    build: Callable[[], et.ElasticModel],
) -> list[Epoch]:
    """What each epoch of a run trained."""
    masks, removed = trained_masks(history), getattr(model, "removed", None)
    if not removed:
        return [(model, mask) for mask in masks]
    models: dict[int, Any] = {}  # PruneTrain: the networks that it had, with the group lasso
    for count in {epoch["rebuilds"] for epoch in history}:
        models[count] = build()
        for labels in removed[:count]:
            models[count].remove(labels)
        models[count].use_lasso(_LASSO)
    return [(models[epoch["rebuilds"]], mask) for epoch, mask in zip(history, masks)]


def _distinct(epochs: Sequence[Epoch]) -> dict[Any, Epoch]:
    return {_key(*epoch): epoch for epoch in epochs}


def _key(model: et.ElasticModel, mask: np.ndarray) -> Any:
    return id(model), mask.tobytes()

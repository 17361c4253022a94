"""What a run reached and cost: sums of its epochs, and what is measured after the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf.engine.snapshot import kept
from elastic_tf.inputs.samples import Rows
from elastic_tf.memory.activations import activation_bytes
from elastic_tf.memory.ops import graph_flops
from elastic_tf.runs.run import trained_plans
from elastic_tf.timing.stopwatch import time_in_turn
from elastic_tf.timing.trace import StepFunction

_WARM_UP = 3  # steps that allocate and fill caches
_LASSO = 0.2  # share of the group lasso in the loss; any takes as long

History = Sequence[Mapping[str, Any]]
Epoch = tuple[et.ElasticModel, et.Plan]  # a compiled model and the plan it was trained under
Found = TypeVar("Found")


def summary(history: History) -> dict[str, Any]:
    """Sums of the epochs of a run."""
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


def result(
    history: History,
    model: et.ElasticModel,
    full: et.ElasticModel,
    batch: tuple[Any, Any],
    build: Callable[[], et.ElasticModel],
    *,
    cached: bool = False,
    timed: bool = True,
) -> dict[str, Any]:
    """Step time and operations of a run's epochs, beside those of full training.

    `full` is what full training trains, compiled alike: the same model where the method trains the
    same network. `build` makes `model` as it was before. `cached`: what lies before the first
    trained tensor was computed before the steps. `timed`: full steps may run; else what is timed
    against them is None.
    """
    epochs = _epochs_of(history, model, build)
    ratio, full_step_seconds = None, None
    if timed:
        ratio, full_step_seconds = speed(epochs, full, batch, cached=cached)
    steps, found = [epoch["steps"] for epoch in history], costs(epochs, batch, cached=cached)
    flops = float(np.dot(steps, found["flops_by_epoch"]))
    return {
        "achieved_ratio": ratio,
        "full_step_seconds": full_step_seconds,
        "flops": flops,
        "flops_ratio": flops
        / (sum(steps) * graph_flops(_full_step(full, batch).graph(_rows(batch)))),
        **found,
    }


def speed(
    epochs: Sequence[Epoch],
    full: et.ElasticModel,
    batch: tuple[Any, Any],
    *,
    repeats: int = 10,
    cached: bool = False,
) -> tuple[float, float]:
    """Step time / full step time, timed in turn, the mean over epochs; leaves nothing behind.

    Also the seconds of a full step, as fast as the machine was then.
    """
    rows = _rows(batch)
    whole = _full_step(full, batch)

    def timed(model: et.ElasticModel, plan: et.Plan) -> tuple[float, float]:
        is_full = model is full and plan == et.Plan.full(len(plan))
        steps = [whole] if is_full else [whole, _step(model, plan, batch, cached=cached)]
        with kept(full, [whole.graph(rows)]), kept(model, [steps[-1].graph(rows)]):
            for run in steps * _WARM_UP:
                run(rows)
            times = time_in_turn(steps, rows, repeats=repeats)
        return np.median(times[:, -1] / times[:, 0]), 1e-6 * np.median(times[:, 0])

    ratios, seconds = zip(*_of_each(epochs, timed))
    return float(np.mean(ratios)), float(np.median(seconds))


def costs(
    epochs: Sequence[Epoch], batch: tuple[Any, Any], *, cached: bool = False
) -> dict[str, Any]:
    """Operations of a step in each epoch, and the most bytes of activations that a step keeps."""

    def found(model: et.ElasticModel, plan: et.Plan) -> tuple[int, Any]:
        flops = graph_flops(_step(model, plan, batch, cached=cached).graph(_rows(batch)))
        return flops, activation_bytes(model, batch, plan)

    flops, sizes = zip(*_of_each(epochs, found))
    most = None if None in sizes else max(sizes)
    return {"flops_by_epoch": list(flops), "activation_bytes": most}


def _step(
    model: et.ElasticModel, plan: et.Plan, batch: tuple[Any, Any], *, cached: bool
) -> StepFunction:
    """A training step on that batch alone, as `fit` makes it."""
    memory = 1 << 30 if cached else 0
    samples = et.Samples(*batch, batch_size=len(batch[1]), memory=memory)
    return StepFunction(model, plan, samples)


def _full_step(model: et.ElasticModel, batch: tuple[Any, Any]) -> StepFunction:
    return _step(model, et.Plan.full(len(model.tensors)), batch, cached=False)


def _rows(batch: tuple[Any, Any]) -> Rows:
    """All samples of a batch, by their numbers."""
    return Rows(tf.range(len(batch[1]), dtype=tf.int64))


def _epochs_of(
    history: History, model: et.ElasticModel, build: Callable[[], et.ElasticModel]
) -> list[Epoch]:
    """What each epoch of a run trained."""
    plans, removed = trained_plans(history), getattr(model, "removed", None)
    if not removed:
        return [(model, plan) for plan in plans]
    models: dict[int, Any] = {}  # PruneTrain: the networks that it had, with the group lasso
    for count in {epoch["rebuilds"] for epoch in history}:
        models[count] = build()
        for labels in removed[:count]:
            models[count].remove(labels)
        models[count].use_lasso(_LASSO)
    return [(models[epoch["rebuilds"]], plan) for epoch, plan in zip(history, plans)]


def _of_each(epochs: Sequence[Epoch], measure: Callable[..., Found]) -> list[Found]:
    """What is measured of each epoch; those with equal steps are measured once."""
    keys = [(id(model), plan.traced) for model, plan in epochs]
    found = {key: measure(*epoch) for key, epoch in dict(zip(keys, epochs)).items()}
    return [found[key] for key in keys]

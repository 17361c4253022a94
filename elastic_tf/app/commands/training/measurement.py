"""What a run reached and cost: sums of its epochs, and what is measured after the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf.app.runs.run import trained_plans
from elastic_tf.memory.activations import activation_bytes
from elastic_tf.memory.ops import graph_flops
from elastic_tf.plan import Plan
from elastic_tf.timing.stopwatch import time_in_turn
from elastic_tf.timing.trace import StepFunction
from elastic_tf.train.engine.snapshot import kept
from elastic_tf.train.inputs.samples import Rows

_WARM_UP = 3  # steps that allocate and fill caches
_LASSO = 0.2  # share of the group lasso in the loss; any takes as long

History = Sequence[Mapping[str, Any]]
Batch = tuple[Any, Any]


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
    batch: Batch,
    build: Callable[[], et.ElasticModel],
    *,
    cached: bool = False,
    timed: bool = True,
) -> dict[str, Any]:
    """Step time, operations and kept activations of a run's epochs, beside full training.

    `full` is what full training trains, compiled alike: the same model where the method trains the
    same network. `build` makes `model` as it was before. `cached`: what lies before the first
    trained tensor was computed before the steps. `timed`: full steps may run; else what is timed
    against them is None.
    """
    epochs, rows = _epochs_of(history, model, build), _rows(batch)
    whole = Plan.full(len(full.tensors))
    keys = [(id(one), plan.traced) for one, plan in epochs]  # of equal steps
    found = {}
    for key, (one, plan) in dict(zip(keys, epochs)).items():
        times = speed(one, plan, full, batch, cached=cached) if timed else (None, None)
        count = graph_flops(_step(one, plan, batch, cached=cached).graph(rows))
        found[key] = (*times, count, activation_bytes(one, batch, plan))
    ratios, seconds, operations, sizes = zip(*(found[key] for key in keys))
    steps = [epoch["steps"] for epoch in history]
    flops = float(np.dot(steps, operations))
    full_flops = sum(steps) * graph_flops(_step(full, whole, batch).graph(rows))
    return {
        "achieved_ratio": float(np.mean(ratios)) if timed else None,
        "full_step_seconds": float(np.median(seconds)) if timed else None,
        "flops": flops,
        "flops_ratio": flops / full_flops,
        "flops_by_epoch": list(operations),
        "activation_bytes": None if None in sizes else max(sizes),
    }


def speed(
    model: et.ElasticModel,
    plan: Plan,
    full: et.ElasticModel,
    batch: Batch,
    *,
    repeats: int = 10,
    cached: bool = False,
) -> tuple[float, float]:
    """Step time / full step time, timed in turn, and the seconds of the full step.

    Leaves nothing behind.
    """
    whole = Plan.full(len(full.tensors))
    steps, rows = [_step(full, whole, batch)], _rows(batch)
    if model is not full or plan != whole:
        steps.append(_step(model, plan, batch, cached=cached))
    with kept(full, [steps[0].graph(rows)]), kept(model, [steps[-1].graph(rows)]):
        for run in steps * _WARM_UP:
            run(rows)
        times = time_in_turn(steps, rows, repeats=repeats)
    return np.median(times[:, -1] / times[:, 0]), 1e-6 * np.median(times[:, 0])


def _step(
    model: et.ElasticModel, plan: Plan, batch: Batch, *, cached: bool = False
) -> StepFunction:
    """A training step on that batch alone, as `fit` makes it."""
    memory = 1 << 30 if cached else 0
    samples = et.Samples(*batch, batch_size=len(batch[1]), memory=memory)
    return StepFunction(model, plan, samples)


def _rows(batch: Batch) -> Rows:
    """All samples of a batch, by their numbers."""
    return Rows(tf.range(len(batch[1]), dtype=tf.int64))


def _epochs_of(
    history: History, model: et.ElasticModel, build: Callable[[], et.ElasticModel]
) -> list[tuple[et.ElasticModel, Plan]]:
    """What each epoch of a run trained."""
    plans, removed = trained_plans(history), getattr(model, "removed", None)
    if not removed:
        return [(model, plan) for plan in plans]
    models: dict[int, Any] = {}  # PruneTrain: the networks that it had, with the group lasso
    for count in {epoch["rebuilds"] for epoch in history}:
        made = models[count] = build()
        et.optimizers.build(made.optimizer, made.trainable_variables)  # `remove` cuts its slots
        for labels in removed[:count]:
            made.remove(labels)
        made.use_lasso(_LASSO)
    return [(models[epoch["rebuilds"]], plan) for epoch, plan in zip(history, plans)]

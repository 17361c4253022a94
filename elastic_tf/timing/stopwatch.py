"""Steps by the clock: what is compared runs in turn, busy rounds are measured again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elastic_tf import arguments, optimizers
from elastic_tf.engine.checks import batch_explained
from elastic_tf.engine.snapshot import kept
from elastic_tf.inputs.batches import as_batch
from elastic_tf.plan import Plan
from elastic_tf.timing.trace import StepFunction

if TYPE_CHECKING:
    from elastic_tf.model import ElasticModel

_MICROSECONDS = 1e6  # in a second
_BUSY = 1.5  # times the median: a round that took longer shared the machine
_PATIENCE = 4  # times the repeats asked for: rounds measured before busy ones are accepted
_WARM_UP = 3  # steps that allocate and fill caches


def time_in_turn(
    runs: Sequence[StepFunction],
    data: Any,
    *,
    repeats: int,
    time_limit: float | None = None,
    settled: bool = True,
) -> np.ndarray:
    """Microseconds of each step function, one after the other; shape (rounds, functions).

    In turn, because the speed of a shared machine drifts: a ratio of neighbours holds. Rounds in
    which the machine was busy with something else are measured again.

    Args:
        runs: step functions, traced and warm.
        data: one batch.
        repeats: undisturbed rounds wanted.
        time_limit: seconds after which three undisturbed rounds are enough.
        settled: time a step that follows one of its own kind, as steps do in training: after a
            larger one it takes up to a tenth longer, for caches and memory are not its own. False
            saves half of the time.
    """
    started = time.perf_counter()
    rounds: list[list[float]] = []
    quiet = np.zeros((0, len(runs)))
    while len(quiet) < repeats and len(rounds) < _PATIENCE * repeats:
        times_now = []
        for run in runs:
            if settled:
                run(data)
            times_now.append(_MICROSECONDS * seconds(run, data))
        rounds.append(times_now)
        times = np.array(rounds)
        totals = times.sum(axis=1)
        quiet = times[totals <= _BUSY * np.median(totals)]
        spent = time.perf_counter() - started
        if time_limit is not None and spent > time_limit and len(quiet) >= 3:
            break
    return quiet


def measure_ratios(
    model: ElasticModel,
    x: Any,
    y: Any,
    masks: Sequence[Plan | np.ndarray],
    *,
    sample_weight: Any = None,
    repeats: int = 10,
) -> list[float]:
    """Step time under each mask / full step time, timed in turn; leaves nothing behind.

    Args:
        model: compiled elastic model; XLA compiles the steps if it compiles the model's.
        x: inputs of one batch.
        y: targets of that batch.
        masks: plans, or True where a tensor is trained; shape (N,). All False: the forward pass.
        sample_weight: weights of the samples, if training has them.
        repeats: timed steps of each kind.

    Returns:
        For each mask the median of the ratios of neighbouring steps.
    """
    arguments.elastic(model, compiled=True)
    repeats = arguments.count("repeats", repeats)
    data = as_batch(x, y, sample_weight)
    optimizers.build(model.optimizer, model.trainable_variables)
    full = StepFunction(model, Plan.full(len(model.tensors)))
    ratios = []
    for mask in arguments.items("masks", masks, what="a list of masks"):
        runs = (full, StepFunction(model, mask))
        with batch_explained(data):
            graphs = [run.graph(data) for run in runs]
        with kept(model, graphs):
            for run in runs * _WARM_UP:
                run(data)
            steps = time_in_turn(runs, data, repeats=repeats)
            ratios.append(float(np.median(steps[:, 1] / steps[:, 0])))
    return ratios


def ratio_uncertainty(steps: np.ndarray) -> float:
    """Half-width of the 95 % interval of the second function's time / the first one's.

    From the middle half of the ratios of neighbouring steps: 1.96 standard errors of a median.

    Args:
        steps: times of two functions; shape (rounds, 2).
    """
    low, high = np.quantile(steps[:, 1] / steps[:, 0], (0.25, 0.75))
    deviation = (high - low) / 1.349  # of a normal distribution
    return float(1.96 * 1.2533 * deviation / np.sqrt(len(steps)))


def seconds(run: StepFunction, data: Any) -> float:
    """Wall-clock of one step."""
    started = time.perf_counter()
    run(data)
    return time.perf_counter() - started

"""Steps by the clock: what is compared runs in turn, busy rounds are measured again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from elastic_tf.timing.trace import StepFunction
from elastic_tf.train.engine.snapshot import kept

_MICROSECONDS = 1e6  # in a second
_BUSY = 1.5  # times the median: a round that took longer shared the machine
_PATIENCE = 4  # times the repeats asked for: rounds measured before busy ones are accepted
_IN_A_ROW = 3  # timed steps of a function before it is the next one's turn
_FEW = 6  # rounds that say how sure they are; after three, one of twelve was 0.05 off unknowingly


def time_in_turn(
    runs: Sequence[Callable[[Any], Any]], data: Any, *, repeats: int, certain: float = 0.0
) -> np.ndarray:
    """Microseconds of each step function, one after the other; shape (rounds, functions).

    In turn, because the speed of a shared machine drifts: a ratio of neighbours holds. Rounds in
    which the machine was busy with something else are measured again. Each timed step follows one
    of its own kind, as in training: after a larger one it takes up to a tenth longer, for caches
    and memory are not its own.

    Args:
        repeats: undisturbed rounds wanted of the functions, which are traced and warm.
        certain: stop earlier, once `ratio_uncertainty` of each function to the first is below this.
    """
    in_a_row = min(repeats, _IN_A_ROW)
    times = np.zeros((0, len(runs)))
    while True:
        turns = [[seconds(run, data) for _ in range(1 + in_a_row)][1:] for run in runs]
        times = np.concatenate([times, _MICROSECONDS * np.transpose(turns)])
        totals = times.sum(axis=1)
        quiet = times[totals <= _BUSY * np.median(totals)]
        ratios = [ratio_uncertainty(quiet[:, [0, k]]) for k in range(1, len(runs))]
        is_certain = len(quiet) >= _FEW and max(ratios, default=0.0) < certain
        if is_certain or len(quiet) >= repeats or len(times) >= _PATIENCE * repeats:
            return quiet


def time_anew(runs: Sequence[StepFunction], data: Any, **options: Any) -> np.ndarray:
    """`time_in_turn` of step functions of one model that it warms up; leaves nothing behind."""
    with kept(runs[0].model, (run.graph(data) for run in runs)):
        for run in runs:
            run.warm_up(data)
        return time_in_turn(runs, data, **options)


def ratio_uncertainty(steps: np.ndarray) -> float:
    """Half-width of the 95 % interval of the second function's time / the first one's.

    From the middle half of the ratios of neighbouring steps, of shape (rounds, 2): 1.96 standard
    errors of a median.
    """
    low, high = np.quantile(steps[:, 1] / steps[:, 0], (0.25, 0.75))
    deviation = (high - low) / 1.349  # of a normal distribution
    return float(1.96 * 1.2533 * deviation / np.sqrt(len(steps)))


def seconds(run: Callable[[Any], Any], data: Any) -> float:
    """Wall-clock of one step."""
    started = time.perf_counter()
    run(data)
    return time.perf_counter() - started

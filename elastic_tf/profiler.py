"""Measure a timing profile: op times by data flow, scaled to the wall clock."""

from __future__ import annotations

import datetime
import math
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elastic_tf import optimizers
from elastic_tf.device import describe_device
from elastic_tf.folding import dependency_sets, fold, forward_surplus, members
from elastic_tf.state import kept
from elastic_tf.timing import DependencySet, TimingProfile, optimizer_name, tensor_specs
from elastic_tf.trace import StepFunction, StepTrace, trace_step

if TYPE_CHECKING:
    from elastic_tf.model import ElasticModel

_MICROSECONDS = 1e6  # in a second
_BUSY = 1.5  # times the median: a step that took longer shared the machine
_PROFILED = 10  # steps under the profiler, at most
_PATIENCE = 4  # times the repeats asked for: rounds measured before busy ones are accepted
_AT_MOST = 0.95  # of the full step: what is believed of a forward pass


def profile_model(
    model: ElasticModel,
    x: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    repeats: int = 10,
    time_limit: float | None = None,
) -> TimingProfile:
    """Measure what training each tensor of `model` costs on this device.

    Runs real training steps on one batch and leaves nothing behind: weights, slots, moving
    statistics, metrics and random generators are as before, bit for bit.

    The op times of a full step and of a step that trains nothing come from the TensorFlow
    profiler and are put onto the tensors by data flow; together they are scaled to the difference
    of the two steps by the clock, timed in turn.

    Args:
        model: compiled elastic model; the optimizer's update is part of the step.
        x: inputs of one batch of the size that training will use.
        y: targets of that batch.
        sample_weight: weights of the samples, if training has them.
        repeats: timed steps of each kind; the times are medians.
        time_limit: stop timing after this many seconds, but not before 3 steps of each kind.

    Returns:
        The profile, with times in microseconds per step.

    Raises:
        ValueError: the model is not compiled or has no trainable tensor, the loss is not finite or
            `repeats` is below 1.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 3.2 and 5.
    """
    profiler = Profiler(model, x, y, sample_weight=sample_weight)
    return profiler.measure(repeats=repeats, time_limit=time_limit)


class Profiler:
    """The full and the frozen step of a model, traced once, to be measured again and again.

    Args as in `profile_model`.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 5.4 (profiling during training).
    """

    def __init__(self, model: ElasticModel, x: Any, y: Any, *, sample_weight: Any = None) -> None:
        if not hasattr(model, "tensors"):
            raise TypeError(
                f"`model` must be an elastic model. Received: {type(model).__name__}. Make one with"
                " elastic_tf.ElasticModel.from_model(model) and compile it."
            )
        if getattr(model, "optimizer", None) is None:
            raise ValueError(
                f"The model must be compiled. Received: model '{model.name}' without an optimizer."
                " Call model.compile(optimizer=..., loss=...): the update is part of the step."
            )
        self.model = model
        self._data = tf.nest.map_structure(
            tf.convert_to_tensor, (x, y) if sample_weight is None else (x, y, sample_weight)
        )
        count = len(model.tensors)
        optimizers.build(model.optimizer, model.trainable_variables)
        self._full = StepFunction(model, np.ones(count, bool))
        self._forward = StepFunction(model, np.zeros(count, bool))

    def measure(self, *, repeats: int = 10, time_limit: float | None = None) -> TimingProfile:
        """A profile of the device as it is now; the first call also traces."""
        if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
            raise ValueError(f"`repeats` must be an integer of at least 1. Received: {repeats!r}.")
        runs = (self._full, self._forward)
        with kept(self.model, (run.graph(self._data) for run in runs)):
            self._forward.untimed(self._data)
            _check_loss(self._forward(self._data))
            self._full.untimed(self._data)
            profiled = min(repeats, _PROFILED)
            trace_forward = trace_step(self._forward, self._data, repeats=profiled)
            trace = trace_step(self._full, self._data, repeats=profiled)
            steps = _time_in_turn(runs, self._data, repeats, time_limit)
        return _assemble(self.model, self._data, trace, trace_forward, steps)


def _assemble(
    model: ElasticModel, data: Any, trace: StepTrace, trace_forward: StepTrace, steps: np.ndarray
) -> TimingProfile:
    """Put the op times onto the tensors and scale them to the clock."""
    t_full, t_forward = _split(steps, trace, trace_forward)
    trace = trace.scaled_to(t_full)
    trace_forward = trace_forward.scaled_to(t_forward)
    sets, in_forward = dependency_sets(trace)
    set_times = fold(trace.times, sets)
    for bits, surplus in forward_surplus(trace, trace_forward, sets, in_forward).items():
        set_times[bits] = max(set_times.get(bits, 0.0) + surplus, 0.0)
    scale = (t_full - t_forward) / sum(set_times.values())

    backward_time = sum(time for name, time in trace.times.items() if name in sets)
    low, high = np.quantile(steps[:, 0], (0.25, 0.75))
    return TimingProfile(
        t_forward=t_forward,
        sets=tuple(
            DependencySet(members(bits), time * scale)
            for bits, time in sorted(set_times.items(), key=lambda item: members(item[0]))
        ),
        count=len(model.tensors),
        tensors=tensor_specs(model),
        op_count=len(trace.nodes),
        input_shape=tuple(tuple(part.shape[1:]) for part in tf.nest.flatten(data[0])),
        batch_size=int(tf.nest.flatten(data[0])[0].shape[0]),
        optimizer=optimizer_name(model),
        device=describe_device(),
        method="profiler",
        repeats=len(steps),
        spread=float((high - low) / (2 * t_full)),
        share_attributed=backward_time / (backward_time + trace.time_unmatched),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )


def measure_ratios(
    model: ElasticModel, x: Any, y: Any, masks: Sequence[np.ndarray], *, repeats: int = 10
) -> list[float]:
    """Step time under each mask / full step time, timed in turn; leaves nothing behind.

    Args:
        model: compiled elastic model.
        x: inputs of one batch.
        y: targets of that batch.
        masks: True where a tensor is trained; each bool, shape (N,), forward order.
        repeats: timed steps of each kind.

    Returns:
        For each mask the median of the ratios of neighbouring steps.
    """
    data = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
    optimizers.build(model.optimizer, model.trainable_variables)
    full = StepFunction(model, np.ones(len(model.tensors), bool))
    ratios = []
    for mask in masks:
        runs = (full, StepFunction(model, mask))
        with kept(model, [run.graph(data) for run in runs]):
            for run in runs * 3:  # the first steps allocate and fill caches
                run(data)
            steps = _time_in_turn(runs, data, repeats, None)
        ratios.append(float(np.median(steps[:, 1] / steps[:, 0])))
    return ratios


def _check_loss(loss: float) -> None:
    if not math.isfinite(loss):
        raise ValueError(
            f"The loss must be finite on the batch. Received: loss={loss}. Look at the batch, or "
            "lower the learning rate that the model was trained with."
        )


def _time_in_turn(
    runs: tuple[StepFunction, ...], data: Any, repeats: int, time_limit: float | None
) -> np.ndarray:
    """Microseconds of each step function, one after the other; shape (rounds, functions).

    In turn, because the speed of a shared machine drifts: a ratio of neighbours holds. Rounds in
    which the machine was busy with something else are measured again.
    """
    started = time.perf_counter()
    rounds: list[list[float]] = []
    quiet = np.zeros((0, len(runs)))
    while len(quiet) < repeats and len(rounds) < _PATIENCE * repeats:
        rounds.append([_MICROSECONDS * _seconds(run, data) for run in runs])
        times = np.array(rounds)
        quiet = times[(times <= _BUSY * np.median(times, axis=0)).all(axis=1)]
        spent = time.perf_counter() - started
        if time_limit is not None and spent > time_limit and len(quiet) >= 3:
            break
    return quiet


def _split(steps: np.ndarray, trace: StepTrace, trace_forward: StepTrace) -> tuple[float, float]:
    """t_full and t_forward by the clock.

    Where the noise of the clock is larger than the backward pass, the op times give the ratio.
    """
    t_full = float(np.median(steps[:, 0]))
    ratio = float(np.median(steps[:, 1] / steps[:, 0]))
    if ratio >= 1.0:
        ratio = min(sum(trace_forward.times.values()) / sum(trace.times.values()), _AT_MOST)
        warnings.warn(
            f"The machine is too busy to tell the forward pass from the full step ({t_full:.0f} "
            "microseconds) by the clock; the profile rests on op times alone. Measure again with "
            "more repeats when nothing else runs.",
            stacklevel=3,
        )
    return t_full, ratio * t_full


def _seconds(run: StepFunction, data: Any) -> float:
    started = time.perf_counter()
    run(data)
    return time.perf_counter() - started

"""Measure a timing profile: op times by data flow, scaled to the wall clock."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, optimizers
from elastic_tf.arguments import brief
from elastic_tf.engine.checks import batch_explained
from elastic_tf.engine.snapshot import kept
from elastic_tf.files.json_form import now
from elastic_tf.inputs.batches import as_batch, first_batch, sample_shapes
from elastic_tf.timing import calibration as differences
from elastic_tf.timing.attribution import Attribution, attribute, forward_surplus, with_surplus
from elastic_tf.timing.cost_items import CostItem, as_arrays
from elastic_tf.timing.device import describe_device
from elastic_tf.timing.profile import TimingProfile, layer_names, optimizer_name, tensor_specs
from elastic_tf.timing.runtime import RuntimeSettings
from elastic_tf.timing.stopwatch import ratio_uncertainty, time_in_turn
from elastic_tf.timing.trace import (
    StepFunction,
    StepTrace,
    compiled_by_xla,
    has_own_step,
    trace_step,
)

if TYPE_CHECKING:
    from elastic_tf.model import ElasticModel

_MOST_REPEATS = 1_000_000
_PROFILED = 10  # steps under the profiler, at most
_AT_MOST = 0.95  # of the full step: what is believed of a forward pass
_LEAST_ATTRIBUTED = 0.9  # of the time outside the forward pass, for op times to be believed
_AS_THEY_ARE = differences.Fit((1.0,) * 2 * differences.SEGMENTS, 0.0)


def profile_model(
    model: ElasticModel,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    repeats: int = 10,
    time_limit: float | None = None,
    calibrate: bool = True,
) -> TimingProfile:
    """Measure what training each tensor of `model` costs on this device.

    Runs real training steps on one batch and leaves nothing behind: weights, slots, moving
    statistics, metrics and random generators are as before, bit for bit.

    The op times of a full step and of a step that trains nothing come from the TensorFlow
    profiler and are put onto the tensors by data flow. The clock times these two steps and, to
    calibrate, steps under seven more masks, all in turn: they correct what op times cannot tell
    (see `timing.calibration`), and stand alone where ops cannot be seen, because XLA compiles
    the step or the device tells the profiler nothing.

    Args:
        model: compiled elastic model; the optimizer's update is part of the step. One that has
            never been called gets its weights by a call on this batch.
        x: inputs of one batch of the size that training will use; or a `tf.data.Dataset` of
            batches (x, y) or (x, y, sample_weight), of which the first is taken.
        y: targets of that batch; left out with a dataset, like `sample_weight`.
        sample_weight: weights of the samples, if training has them.
        repeats: timed steps of each kind; the times are medians.
        time_limit: stop timing after this many seconds, but not before 3 steps of each kind.
        calibrate: False leaves out the seven masks: a quarter of the time, and less exact.

    Returns:
        The profile, with times in microseconds per step.

    Raises:
        ValueError: the model is not compiled, refuses the batch or has no trainable tensor, the
            loss is not one finite number, or an argument is out of range.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 3.2 and 5.
    """
    # Before anything is traced, which takes seconds.
    arguments.flag("calibrate", calibrate)
    arguments.count("repeats", repeats, most=_MOST_REPEATS)
    if isinstance(x, tf.data.Dataset):
        if y is not None or sample_weight is not None:
            raise ValueError(
                "`y` and `sample_weight` must be left out where `x` is a dataset, which holds "
                f"them. Received: y={brief(y)}, sample_weight={brief(sample_weight)} beside "
                f"{brief(x)}. Give the dataset alone, or one batch of it: x, y = next(iter(x))."
            )
        x, y, sample_weight = (*first_batch(x), None)[:3]
    elif y is None:
        raise ValueError(
            f"`y` must be the targets of the batch. Received: y=None beside x={brief(x)}. Give "
            "profile_model(model, x, y), or a tf.data.Dataset of batches (x, y) alone."
        )
    profiler = Profiler(
        model, x, y, sample_weight=sample_weight, calibration=None if calibrate else ()
    )
    return profiler.measure(repeats=repeats, time_limit=time_limit)


class Profiler:
    """The full and the frozen step of a model, traced once, to be measured again and again.

    Args:
        model, x, y, sample_weight: as in `profile_model`; x and y are arrays of one batch.
        calibration: of an earlier profile of this model, for the masks take most of the time; empty
            for none. None: found at the first measurement and kept.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 5.4 (profiling during training).
    """

    def __init__(
        self,
        model: ElasticModel,
        x: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        calibration: Sequence[float] | None = None,
    ) -> None:
        self.model = arguments.elastic(model, compiled=True)
        if calibration and len(calibration) != len(_AS_THEY_ARE.factors):
            raise ValueError(
                f"`calibration` must hold {len(_AS_THEY_ARE.factors)} factors. Received: "
                f"{calibration!r}."
            )
        self._data = as_batch(x, y, sample_weight)
        if not model.built:  # a subclassed model is, by the first batch that it is called on
            with batch_explained(self._data):
                model(self._data[0])
        self._work: Attribution | None = None
        self._calibration: differences.Fit | None = None
        if calibration is not None:
            factors = tuple(calibration)
            self._calibration = differences.Fit(factors, 0.0) if factors else _AS_THEY_ARE
        optimizers.build(model.optimizer, model.trainable_variables)
        every = np.ones(len(model.tensors), bool)
        self._seen = [StepFunction(model, mask, jit_compile=False) for mask in (every, ~every)]
        self._timed = self._seen
        if compiled_by_xla(model):
            self._timed = [StepFunction(model, mask) for mask in (every, ~every)]

    def measure(
        self, *, repeats: int = 10, time_limit: float | None = None, settled: bool = True
    ) -> TimingProfile:
        """A profile of the device as it is now; the first call also traces.

        Args:
            repeats, time_limit: as in `profile_model`.
            settled: False saves half of the time; see `elastic_tf.timing.stopwatch`.
        """
        repeats = arguments.count("repeats", repeats, most=_MOST_REPEATS)
        if time_limit is not None:
            time_limit = arguments.number("time_limit", time_limit, low=0.0)
        full, forward = self._seen
        with kept(self.model, self._graphs((*self._seen, *self._timed))):
            work = self._attribution()
            for run in self._timed:
                run.warm_up(self._data)
            profiled = min(repeats, _PROFILED) if settled else 1
            trace = trace_step(full, self._data, repeats=profiled)
            trace_forward = trace_step(forward, self._data, repeats=profiled)
        count = len(self.model.tensors)
        parts = differences.segments(*as_arrays(work.items(trace.times), count))
        masks = np.zeros((0, count), bool)
        if self._calibration is None:
            masks = differences.chosen_masks(parts)
        runs = [*self._timed, *(StepFunction(self.model, mask) for mask in masks)]
        with kept(self.model, self._graphs(runs)):
            for run in runs:
                run.warm_up(self._data)
            steps = time_in_turn(
                runs, self._data, repeats=repeats, time_limit=time_limit, settled=settled
            )

        t_full, t_forward = _split(steps, _op_ratio(trace, trace_forward))
        items, share = self._attributed(work, trace, trace_forward, t_full, t_forward)
        members, expected = as_arrays(items, count)
        calibration = self._calibration
        if calibration is None:
            ratios = np.median(steps[:, 2:] / steps[:, :1], axis=0)
            calibration = differences.fit(
                members, expected, parts, masks, ratios, t_forward / t_full
            )
            self._calibration = calibration
        times = expected * np.array(calibration.factors)[differences.cells_of(members, parts)]
        times *= (t_full - t_forward) / times.sum()
        times *= self._share_paid(work, trace, items)
        low, high = np.quantile(steps[:, 0], (0.25, 0.75))
        inputs = tf.nest.flatten(self._data[0])
        method, note = self._method(share, calibration, trace)
        return TimingProfile(
            t_forward=t_forward,
            items=tuple(replace(item, time=time) for item, time in zip(items, times.tolist())),
            count=count,
            tensors=tensor_specs(self.model),
            op_count=len(trace.nodes),
            input_shape=tuple(sample_shapes(inputs) or ()),
            batch_size=int(inputs[0].shape[0]),
            optimizer=optimizer_name(self.model),
            device=describe_device(),
            settings=RuntimeSettings.of_environment(xla=compiled_by_xla(self.model)),
            method=method,
            note=note,
            calibration=calibration.factors,
            repeats=len(steps),
            spread=float((high - low) / (2 * t_full)),
            uncertainty=ratio_uncertainty(steps) + calibration.residual,
            share_attributed=share,
            created=now(),
        )

    def _attribution(self) -> Attribution:
        """What the ops of the full step belong to; found once."""
        if self._work is None:
            full, forward = self._seen
            with batch_explained(self._data):
                forward.warm_up(self._data)
            _check_loss(forward(self._data))  # full steps may diverge; they are taken back
            self._work = attribute(full.untimed(self._data), layer_names(self.model))
            if not self._work.items():
                raise ValueError(
                    "The loss must depend on a trainable tensor. Received: model "
                    f"'{self.model.name}', no tensor of which gets a gradient. Look at its loss."
                )
        return self._work

    def _attributed(
        self,
        work: Attribution,
        trace: StepTrace,
        trace_forward: StepTrace,
        t_full: float,
        t_forward: float,
    ) -> tuple[list[CostItem], float]:
        """Op times put onto the tensors, and the share of the backward time that has some."""
        if not (trace.times and trace_forward.times):
            return work.items(), 0.0
        trace = trace.scaled_to(t_full)
        surplus = forward_surplus(trace, trace_forward.scaled_to(t_forward), work)
        items = with_surplus(work.items(trace.times), surplus, layer_names(self.model))
        backward = sum(time for name, time in trace.times.items() if name in work.sets)
        return items, backward / (backward + trace.time_unmatched)

    def _share_paid(
        self, work: Attribution, trace: StepTrace, items: Sequence[CostItem]
    ) -> np.ndarray:
        """The share of each item that a step pays for: of updates, one in `accumulate` steps."""
        accumulation = self.model._elastic.accumulation
        if accumulation is None:
            return np.ones(len(items))
        times = trace.times or dict.fromkeys(work.sets, 1.0)
        updates = {name: times.get(name, 0.0) for name in work.update}
        whole, update = (
            {(item.condition, item.layer): item.time for item in work.items(part)}
            for part in (times, updates)
        )
        shares = [
            update.get((item.condition, item.layer), 0.0) / whole[item.condition, item.layer]
            if item.kind != "forward"
            else 0.0
            for item in items
        ]
        return 1.0 - np.array(shares) * (1.0 - 1.0 / accumulation.steps)

    def _graphs(self, runs: Sequence[StepFunction]) -> Iterator[Any]:
        """The graphs of step functions, traced when asked for."""
        for run in runs:
            with batch_explained(self._data):
                graph = run.graph(self._data)
            yield graph

    def _method(
        self, share: float, calibration: differences.Fit, trace: StepTrace
    ) -> tuple[str, str]:
        """How the times were found, and why not from op times."""
        if compiled_by_xla(self.model):
            return "differences", "XLA compiles the step into one kernel"
        if has_own_step(self.model) and not any(trace.gradients):
            name = type(self.model).__name__
            return "differences", f"{name}.train_step finds its gradients by itself"
        if share < _LEAST_ATTRIBUTED:
            return "differences", f"the profiler tells of {share:.0%} of the backward time"
        return ("calibrated" if calibration != _AS_THEY_ARE else "profiler"), ""


def _check_loss(loss: float) -> None:
    if not math.isfinite(loss):
        raise ValueError(
            f"The loss must be finite on the batch. Received: loss={loss}. Look at the batch, or "
            "lower the learning rate that the model was trained with."
        )


def _op_ratio(trace: StepTrace, trace_forward: StepTrace) -> float:
    """Forward pass / full step by the op times alone; 1/3, as in the paper, without any."""
    full, forward = (sum(t.times.values()) for t in (trace, trace_forward))
    return min(forward / full, _AT_MOST) if full and forward else 1 / 3


def _split(steps: np.ndarray, op_ratio: float) -> tuple[float, float]:
    """t_full and t_forward by the clock.

    Where the noise of the clock is larger than the backward pass, the op times give the ratio.
    """
    t_full = float(np.median(steps[:, 0]))
    ratio = float(np.median(steps[:, 1] / steps[:, 0]))
    if ratio >= 1.0:
        ratio = op_ratio
        warnings.warn(
            f"The machine is too busy to tell the forward pass from the full step ({t_full:.0f} "
            "microseconds) by the clock; the profile rests on op times alone. Measure again with "
            "more repeats when nothing else runs.",
            stacklevel=3,
        )
    return t_full, ratio * t_full

"""Measure a timing profile: op times by data flow, scaled to the wall clock."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.files import now
from elastic_tf.stack import forget_results, trainable
from elastic_tf.timing import calibration as differences
from elastic_tf.timing.attribution import (
    Attribution,
    attribute,
    cacheable,
    forward_surplus,
    with_surplus,
)
from elastic_tf.timing.cost_items import CostItem, as_arrays
from elastic_tf.timing.profile import TimingProfile, optimizer_name, tensor_specs
from elastic_tf.timing.runtime import describe_device
from elastic_tf.timing.stopwatch import ratio_uncertainty, time_anew
from elastic_tf.timing.trace import StepFunction, StepTrace, has_own_step, trace_step
from elastic_tf.train.engine.checks import batch_explained
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.snapshot import kept
from elastic_tf.train.inputs.batches import as_batch, first_batch, sample_shapes

_MOST_REPEATS = 1_000_000
_PROFILED = 4  # steps under the profiler, at most
_AT_MOST = 0.95  # of the full step: what is believed of a forward pass
_LEAST_ATTRIBUTED = 0.9  # of the time outside the forward pass, for op times to be believed
_AS_THEY_ARE = (1.0,) * differences.CELLS


def profile_model(
    model: ElasticMixin,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    repeats: int = 10,
) -> TimingProfile:
    """Measure what training each tensor of `model` costs on this device.

    Runs real training steps on one batch and leaves nothing behind: weights, slots, moving
    statistics, metrics and random generators are as before, bit for bit.

    Op times come from the TensorFlow profiler, are put onto the tensors by data flow, and add up to
    the full step and the forward pass by the clock. Whole steps under four masks, timed in turn,
    correct them on a GPU (see `timing.calibration`), and stand alone where ops cannot be seen: XLA
    compiles the step, or the device does not report them.

    Args:
        model: compiled elastic model; the optimizer's update is part of the step. One that has
            never been called gets its weights by a call on this batch.
        x: inputs of one batch of the size that training will use; or a `tf.data.Dataset` of
            batches (x, y) or (x, y, sample_weight), of which the first is taken.
        y: targets of that batch; left out with a dataset, like `sample_weight`.
        sample_weight: weights of the samples, if training has them.
        repeats: timed steps of each kind, fewer once medians are certain; the times are medians.

    Raises:
        ValueError: the model is not compiled, refuses the batch or has no trainable tensor, the
            loss is not one finite number, or an argument is out of range.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 3.2 and 5.
    """
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
    return Profiler(model, (x, y, sample_weight)).measure(repeats=repeats)


class Profiler:
    """The full and the frozen step of a model, as in `profile_model`, on one batch."""

    def __init__(self, model: ElasticMixin, data: Any) -> None:
        self.model = arguments.elastic(model, compiled=True)
        self._data = as_batch(*data)
        if not model.built:  # a subclassed model is, by the first batch that it is called on
            with batch_explained(self._data):
                model(self._data[0])
        every = np.ones(len(trainable(model)), bool)
        self._seen = [StepFunction(model, mask, jit_compile=False) for mask in (every, ~every)]
        self._timed = self._seen
        if model.jit_compile:
            self._timed = [StepFunction(model, mask) for mask in (every, ~every)]

    def measure(self, *, repeats: int = 10) -> TimingProfile:
        """A profile of the device as it is now; `repeats` as in `profile_model`."""
        repeats = arguments.count("repeats", repeats, most=_MOST_REPEATS)
        # the first trace is made twice where it makes metrics: that of the smallest graph
        with kept(self.model, (run.graph(self._data) for run in reversed(self._seen))):
            self._work = work = self._attribution()
            profiled = min(repeats, _PROFILED)
            trace, trace_forward = (
                trace_step(run, self._data, repeats=profiled) for run in self._seen
            )
        count = len(self.model.tensors)
        share = 0.0
        if trace.times and trace_forward.times:
            backward = sum(time for name, time in trace.times.items() if name in work.sets)
            share = backward / (backward + trace.time_unmatched)
        method, note = self._method(share, trace)
        parts = differences.segments(*as_arrays(work.items(trace.times), count))
        folded = work.is_folded(count)
        masks = np.zeros((0, count), bool)
        if method != "profiler":
            masks = differences.chosen_masks(parts, folded)
        runs = [*self._timed, *(StepFunction(self.model, mask) for mask in masks)]
        certain = differences.RATIO_ERROR
        steps = time_anew(runs, self._data, repeats=repeats, certain=certain)
        forget_results(self.model)
        ratios = np.median(steps / steps[:, :1], axis=0)

        t_full, t_forward = _split(steps, trace, trace_forward)
        busy = sum(trace.times.values()) / t_full
        is_launching = trace.on_device and busy < _LEAST_ATTRIBUTED
        items, prefix, surplus = work.items(), [], {}
        if trace.times and trace_forward.times and not is_launching:
            trace, trace_forward = trace.scaled_to(t_full), trace_forward.scaled_to(t_forward)
            surplus = forward_surplus(trace, trace_forward, work)
            items = with_surplus(work.items(trace.times), surplus)
            prefix = cacheable(trace_forward)
        members, expected = as_arrays(items, count)
        factors, residual = _AS_THEY_ARE, 0.0
        if method != "profiler":
            factors, residual = differences.fit(
                members, expected, parts, folded, masks, ratios[2:], t_forward / t_full
            )
        times = expected * np.array(factors)[differences.cells_of(members, parts, folded)]
        times *= (t_full - t_forward) / times.sum()
        times *= self._share_paid(work, trace, surplus, items)
        low, high = np.quantile(steps[:, 0], (0.25, 0.75))
        if is_launching:  # each op takes about as long to launch: as many as there are
            share, method = 0.0, "differences"
            note = f"kernels fill {busy:.0%} of a step, the rest is launching them"
        return TimingProfile(
            t_forward=t_forward,
            items=tuple(replace(item, time=time) for item, time in zip(items, times.tolist())),
            prefix=tuple(prefix),
            method=method,
            note=note,
            calibration=factors,
            repeats=len(steps),
            spread=float((high - low) / (2 * t_full)),
            uncertainty=ratio_uncertainty(steps) + residual,
            share_attributed=share,
            **described(self.model, self._data[0]),
        )

    def _attribution(self) -> Attribution:
        """What the ops of the full step belong to."""
        full, forward = self._seen
        with batch_explained(self._data):
            frozen = forward.untimed(self._data)
        loss = forward(self._data)  # full steps may diverge; they are taken back
        if not math.isfinite(loss):
            raise ValueError(
                f"The loss must be finite on the batch. Received: loss={loss}. Look at the batch, "
                "or lower the learning rate that the model was trained with."
            )
        work = attribute(full.untimed(self._data), frozen)
        if not work.items():
            raise ValueError(
                f"The loss must depend on a trainable tensor. Received: model '{self.model.name}', "
                "no tensor of which gets a gradient. Look at its loss."
            )
        return work

    def _share_paid(
        self, work: Attribution, trace: StepTrace, surplus: Any, items: Sequence[CostItem]
    ) -> np.ndarray:
        """The share of each item that a step pays for: of updates, one in `accumulate` steps."""
        accumulation = self.model._elastic.accumulation
        if accumulation is None:
            return np.ones(len(items))
        whole = trace.times or dict.fromkeys(work.sets, 1.0)
        paid = {n: t / accumulation.steps if n in work.update else t for n, t in whole.items()}
        before, after = (
            {one.tensors: one.time for one in with_surplus(work.items(times), surplus)}
            for times in (whole, paid)
        )
        return np.array([after.get(x.tensors, 0.0) / before[x.tensors] for x in items])

    def _method(self, share: float, trace: StepTrace) -> tuple[str, str]:
        """How the times are found, and why not from op times."""
        if self.model.jit_compile:
            return "differences", "XLA compiles the step into one kernel"
        if has_own_step(self.model) and not any(trace.gradients):
            name = type(self.model).__name__
            return "differences", f"{name}.train_step finds its gradients by itself"
        if share < _LEAST_ATTRIBUTED:
            return "differences", f"the profiler covers {share:.0%} of the backward time"
        return ("calibrated" if trace.on_device else "profiler"), ""


def described(model: Any, x: Any) -> dict[str, Any]:
    """Fields of a profile: the compiled model, its inputs in a batch, this machine, and now."""
    inputs = tf.nest.flatten(x)
    return {
        "count": len(model.tensors),
        "tensors": tensor_specs(model),
        "input_shape": tuple(sample_shapes(inputs) or ()),
        "batch_size": int(inputs[0].shape[0]),
        "optimizer": optimizer_name(model),
        "device": {**describe_device(), "xla": bool(model.jit_compile)},
        "created": now(),
    }


def _split(steps: np.ndarray, trace: StepTrace, trace_forward: StepTrace) -> tuple[float, float]:
    """t_full and t_forward by the clock; where that is noise, by op times or the paper's 1/3."""
    t_full = float(np.median(steps[:, 0]))
    ratio = float(np.median(steps[:, 1] / steps[:, 0]))
    if ratio >= 1.0:
        full, forward = (sum(one.times.values()) for one in (trace, trace_forward))
        ratio = min(forward / full, _AT_MOST) if full and forward else 1 / 3
        warnings.warn(
            f"The machine is too busy to tell the forward pass from the full step ({t_full:.0f} "
            "microseconds) by the clock; the profile rests on op times alone. Measure again with "
            "more repeats when nothing else runs.",
            stacklevel=3,
        )
    return t_full, ratio * t_full

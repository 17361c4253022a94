"""Measure a timing profile: op times by data flow, scaled to the wall clock, corrected by steps.

Op times do not add up: ops that run side by side hide each other, so that leaving out the cheaper
of two saves nothing. And where XLA makes one kernel of a step, or a device gives the profiler
nothing, there are no op times at all. So a few chosen masks are timed by the clock, and the
expected times are corrected, part by part of the model, until they explain these steps.

Sets of tensors stand here as `members`, bool of shape (S, N), with the `expected` time of the work
of each in any unit, shape (S,); `parts` are the `segments` of the tensors, shape (N,); `folded` is
True for the tensors of normalisations that cost nothing when they are frozen, shape (N,).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.stack import forget_results, trainable
from elastic_tf.timing.attribution import Attribution, attribute, cacheable, forward_surplus
from elastic_tf.timing.profile import TimingProfile, as_arrays, described, last_of
from elastic_tf.timing.step import StepFunction, has_own_step, ratio_uncertainty, time_anew
from elastic_tf.timing.trace import StepTrace
from elastic_tf.train.batches import batch_of
from elastic_tf.train.engine.checks import batch_explained
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.tracing import kept

_MOST_REPEATS = 1_000_000
_PROFILED = 4  # steps under the profiler, at most
_AT_MOST = 0.95  # of the full step: what is believed of a forward pass
_LEAST_ATTRIBUTED = 0.9  # of the time outside the forward pass, for op times to be believed

SEGMENTS = 4  # parts of the model, of equal expected time: as many masks to time at most
CELLS = SEGMENTS + 2
_OF_FOLDED, _OF_ONE = SEGMENTS, SEGMENTS + 1  # cells

# How far a measured ratio is off, and how far the expected time of a cell may be (relative): what
# the clock says of a cell counts by its size against the first of these.
_RATIO_ERROR = 0.02
_EXPECTATION_ERROR = 0.7
_LEAST_FACTOR = 0.1  # noise must not make work free


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
    correct them on a GPU, and stand alone where ops cannot be seen: XLA compiles the step, or the
    device does not report them.

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
    arguments.elastic(model, compiled=True)
    repeats = arguments.count("repeats", repeats, most=_MOST_REPEATS)
    data = batch_of(x if y is None and sample_weight is None else (x, y, sample_weight))
    if not model.built:  # a subclassed model is, by the first batch that it is called on
        with batch_explained(data):
            model(data[0])
    count = len(trainable(model))
    every = np.ones(count, bool)
    seen = [StepFunction(model, mask, jit_compile=False) for mask in (every, ~every)]
    # the first trace is made twice where it makes metrics: that of the smallest graph
    with kept(model, (run.graph(data) for run in reversed(seen))):
        work = _attribution(seen, data)
        trace, trace_forward = (run.traced(data, repeats=min(repeats, _PROFILED)) for run in seen)
    share = 0.0
    if trace.times and trace_forward.times:
        backward = sum(time for name, time in trace.times.items() if name in work.sets)
        share = backward / (backward + trace.time_unmatched)
    method, note = _method(model, share, trace)
    parts, folded = segments(*as_arrays(work.items(trace.times), count)), work.is_folded(count)
    masks = np.zeros((0, count), bool) if method == "profiler" else chosen_masks(parts, folded)
    timed = [StepFunction(model, mask) for mask in (every, ~every)] if model.jit_compile else seen
    runs = [*timed, *(StepFunction(model, mask) for mask in masks)]
    steps = time_anew(runs, data, repeats=repeats, certain=_RATIO_ERROR)
    forget_results(model)

    t_full, t_forward = _split(steps, trace, trace_forward)
    busy = sum(trace.times.values()) / t_full
    items, prefix = work.items(), []
    if trace.on_device and busy < _LEAST_ATTRIBUTED:
        # each op takes about as long to launch: as many as there are
        share, method = 0.0, "differences"
        note = f"kernels fill {busy:.0%} of a step, the rest is launching them"
    elif trace.times and trace_forward.times:
        trace, trace_forward = trace.scaled_to(t_full), trace_forward.scaled_to(t_forward)
        items = work.items(trace.times, forward_surplus(trace, trace_forward, work))
        prefix = cacheable(trace_forward)
    members, times = as_arrays(items, count)
    factors, residual = np.ones(CELLS), 0.0
    if method != "profiler":
        cells = cells_of(members, parts, folded)
        ratios = np.median(steps[:, 2:] / steps[:, :1], axis=0)
        factors, residual = fit(members, times, cells, masks, ratios, t_forward / t_full)
        times = times * factors[cells]
    times = times * ((t_full - t_forward) / times.sum())
    low, high = np.quantile(steps[:, 0], (0.25, 0.75))
    return TimingProfile(
        t_forward=t_forward,
        items=tuple(replace(item, time=time) for item, time in zip(items, times.tolist())),
        prefix=tuple(prefix),
        method=method,
        note=note,
        calibration=tuple(factors.tolist()),
        repeats=len(steps),
        spread=float((high - low) / (2 * t_full)),
        uncertainty=ratio_uncertainty(steps) + residual,
        share_attributed=share,
        **described(model, data[0]),
    )


def _attribution(runs: list[StepFunction], data: Any) -> Attribution:
    """What the ops of the full step belong to."""
    full, forward = runs
    with batch_explained(data):
        frozen = forward.untimed(data)
    loss = forward(data)  # full steps may diverge; they are taken back
    if not math.isfinite(loss):
        raise ValueError(
            f"The loss must be finite on the batch. Received: loss={loss}. Look at the batch, or "
            "lower the learning rate that the model was trained with."
        )
    work = attribute(full.untimed(data), frozen)
    if not work.items():
        raise ValueError(
            f"The loss must depend on a trainable tensor. Received: model '{full.model.name}', no "
            "tensor of which gets a gradient. Look at its loss."
        )
    return work


def _method(model: ElasticMixin, share: float, trace: StepTrace) -> tuple[str, str]:
    """How the times are found, and why not from op times."""
    if model.jit_compile:
        return "differences", "XLA compiles the step into one kernel"
    if has_own_step(model) and not any(trace.gradients):
        return "differences", f"{type(model).__name__}.train_step finds its gradients by itself"
    if share < _LEAST_ATTRIBUTED:
        return "differences", f"the profiler covers {share:.0%} of the backward time"
    return ("calibrated" if trace.on_device else "profiler"), ""


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


def segments(members: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The part of the model that each tensor belongs to, input first: from 0, below SEGMENTS."""
    own = np.bincount(last_of(members), expected, members.shape[1])
    middle = np.cumsum(own) - own / 2
    parts = np.minimum((SEGMENTS * middle / own.sum()).astype(int), SEGMENTS - 1)
    return np.unique(parts, return_inverse=True)[1]


def chosen_masks(parts: np.ndarray, folded: np.ndarray) -> np.ndarray:
    """The masks to time, bool (masks, N): from each segment on, all but the folded or a third.

    Full and empty masks are left out. The rule was chosen among some sixty on 24 random plans of
    five networks. On 16 other plans of each predictions were off by 0.008 to 0.032; by 0.006 to
    0.053 with all of each segment alone.
    """
    onward = parts >= np.arange(parts.max() + 1)[:, None]
    masks = onward & ~folded
    for segment in range(len(masks)):
        if segment % 2 or masks[segment].all():
            third = np.random.default_rng(segment).random(len(parts)) < 1 / 3
            third[np.argmax(onward[segment])] = True
            masks[segment] = onward[segment] & third
    masks = np.unique(masks, axis=0)
    return masks[masks.any(axis=1) & ~masks.all(axis=1)]


def cells_of(members: np.ndarray, parts: np.ndarray, folded: np.ndarray) -> np.ndarray:
    """The cell of each set: the factor of the fit that its time is multiplied with; shape (S,).

    Work for one tensor, weight gradient and update, is one cell; what folded normalisations need is
    one; the rest, input gradients above all, has a cell for the segment of its last tensor.
    """
    cells = parts[last_of(members)]
    cells[~members[:, ~folded].any(axis=1)] = _OF_FOLDED
    cells[members.sum(axis=1) == 1] = _OF_ONE
    return cells


def fit(
    members: np.ndarray,
    expected: np.ndarray,
    cells: np.ndarray,
    masks: np.ndarray,
    ratios: np.ndarray,
    forward_ratio: float,
) -> tuple[np.ndarray, float]:
    """The positive factors with which the expected times explain the measured steps best.

    Within a cell times keep the expected proportions; the factor of each cell is fitted, by least
    squares with a bound that also hold it near 1 where the steps say nothing of it.

    Args:
        cells: the cell of each set, see `cells_of`; shape (S,).
        masks: True where a tensor was trained; bool, shape (masks, N).
        ratios: step time / full step time under each mask; shape (masks,).
        forward_ratio: step time with nothing trained / full step time.

    Returns:
        CELLS factors, 1 where a cell is empty; and the root mean square of the part of the
        measured ratios that they leave unexplained.
    """
    from scipy.optimize import lsq_linear  # takes long to load

    weights = expected * (1.0 - forward_ratio) / expected.sum()
    every = np.vstack([masks, np.ones((1, members.shape[1]), bool)])
    runs = (every[:, None, :] & members[None]).any(axis=2)  # (masks + 1, S)
    design = np.zeros((len(every), CELLS))
    np.add.at(design.T, cells, (runs * weights).T)
    measured = np.append(ratios, 1.0) - forward_ratio

    near_one = np.eye(CELLS) / _EXPECTATION_ERROR
    rows = np.vstack([design / _RATIO_ERROR, near_one])
    wanted = np.append(measured / _RATIO_ERROR, near_one.sum(axis=1))
    factors = lsq_linear(rows, wanted, bounds=(_LEAST_FACTOR, np.inf), method="bvls").x
    return factors, float(np.sqrt(np.mean((design @ factors - measured) ** 2)))

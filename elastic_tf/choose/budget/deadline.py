"""Deadline control: what the seconds left allow."""

from __future__ import annotations

import math
import warnings

from elastic_tf.choose.budget.ledger import Ledger
from elastic_tf.choose.budget.prior import StepCosts, first_step_seconds
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.head.solve import solvers

_LATE = 0.01  # of a deadline: what it may be passed by without a word
_AIM = 0.97  # of a deadline: what is planned for; the rest is for steps slower than the last ones
_DRIFT = 0.25  # of a step's time: what it changes by on a shared device and back within seconds
_LEAST = 0.5  # of the present plan's time: another plan takes no less, or training stops early
_HALF = 0.5  # of a full step: what is thought of a plan before it is chosen
_KEEPING = 1.4  # times a forward pass over the samples: computing what is kept
# Times a forward pass is traced: the first validation beyond the next ones, of EfficientNetV2-B0 2,
# of ResNet50 2.3, of ViT-Ti 2.5, of MobileNet 3, of MobileNetV2 4.
_VALIDATING = 3.0


class DeadlineControl:
    """Which `rho` ends on time, whether another one is needed, and when to stop."""

    def __init__(
        self, seconds: float, model: ElasticMixin, ledger: Ledger, costs: StepCosts
    ) -> None:
        self.seconds = ledger.deadline = seconds
        self._model, self._ledger, self._costs = model, ledger, costs
        self._look_at = math.inf  # steps left when the end is looked at

    def begin(self) -> None:
        """Foresee the first validation; refuse data whose length nobody knows."""
        state, profile = self._model._elastic, self._costs.profile
        if state.data is not None and profile is not None and profile.batch_size:
            rows = state.data.rows_to_validate(profile.batch_size)
            passing = 1e-6 * profile.t_forward * rows / profile.batch_size
            self._ledger.foreseen = passing, _VALIDATING * state.tracing * bool(rows)
        if self._ledger.steps_left is None:
            raise ValueError(
                "A deadline needs to know how many steps an epoch has. Received: data of unknown "
                f"length with Deadline({self.seconds:g}). Give `fit` steps_per_epoch, or the "
                "dataset tf.data.experimental.assert_cardinality."
            )

    def has_time_to_keep(self) -> bool:
        """Whether there is for a forward pass over the samples beside the end of an epoch."""
        seconds = _KEEPING * self._once + self._ledger.ending
        return self._ledger.elapsed + seconds <= self.seconds

    def rho(self, smallest: float, present: float | None = None) -> float:
        """What ends on time with another plan than one of the ratio `present`, `smallest` at least.

        Half of the present one at least: few tensors, trained further alone, end up worse.
        """
        seconds = self._seconds_for_steps() - self._another
        full = (self._ledger.steps_left or 0) * self._full_seconds
        least = max(smallest, _LEAST * (present or 0.0))
        return min(max(seconds / full, least), 1.0) if full > 0.0 else 1.0

    def is_off(self, predicted: float, is_full: bool) -> bool:
        """Whether the end is so far off that another plan than that ratio pays for its tracing."""
        ledger = self._ledger
        left = ledger.steps_left or 0
        if not ledger.is_settled or left > self._look_at:
            return False
        self._look_at = left - left // 10
        full = left * self._full_seconds
        off = self._seconds_for_steps() - full * predicted
        known = self._costs.profile.uncertainty if self._costs.profile else 0.0
        least = max(full * max(known, _DRIFT * predicted), self._another)
        return abs(off) > least and not (off > 0.0 and is_full)

    def stops(self, more: float = 0.0) -> bool:
        """Stop where another step, so much longer than usual, would be too late; whether so."""
        ledger, model = self._ledger, self._model
        ends = ledger.elapsed + more + ledger.before_the_end + self._seconds_of_heads()
        is_over = bool(ledger.steps_left) and ends > self.seconds
        if is_over and not model.stop_training:
            model.stop_training = True
            warnings.warn(
                f"Training stops {ledger.steps_left} steps early, or it would end after the "
                f"deadline of {self.seconds:g} s. Give more seconds or train fewer epochs.",
                stacklevel=4,
            )
        return is_over

    def end(self) -> None:
        """`fit` ends: say so where it is too late."""
        late = self._ledger.elapsed - self.seconds
        if late > _LATE * self.seconds:
            warnings.warn(
                f"`fit` took {late:.1f} s more than its deadline of {self.seconds:g} s. Train "
                "fewer epochs, or validate on less data.",
                stacklevel=4,
            )

    def _seconds_for_steps(self) -> float:
        """What is left for the steps to come, if the training ends where it is planned to."""
        ledger = self._ledger
        return _AIM * self.seconds - ledger.elapsed - ledger.endings_left - self._seconds_of_heads()

    def _seconds_of_heads(self) -> float:
        """What solving heads will take: a traced pass over the samples, then as long untraced."""
        state, once, seconds = self._model._elastic, self._once, 0.0
        # where the pass that computes what is kept is a part of a plan's time
        keeps = state.rows is not None and state.rows.keeps(self._ledger.epochs)
        for one in solvers(self._model):
            if one.solution is None:
                seconds += state.tracing + (1.0 - keeps + (keeps + one.again) * _HALF) * once
            else:  # of what lies behind what is kept
                behind = self._ledger.ratio * once
                seconds += one.again * max(one.solution.seconds - state.tracing, behind)
        return self._ledger.pace.slower * seconds

    @property
    def _once(self) -> float:
        """Seconds of a forward pass over `Samples`; 0 of other data."""
        rows, profile = self._model._elastic.rows, self._costs.profile
        if not rows or not profile:
            return 0.0
        return 1e-6 * profile.t_forward * rows.samples.rows / rows.samples.batch_size

    @property
    def _another(self) -> float:
        """Seconds of tracing another plan, and of what is kept under it beside a first one."""
        seen = self._ledger.retrace
        if seen is None:
            return first_step_seconds(self._model, _HALF)
        return seen + _KEEPING * self._once

    @property
    def _full_seconds(self) -> float:
        """Of a full step: measured, or else by the profile."""
        profile = self._costs.profile
        return self._ledger.full_seconds or (1e-6 * profile.t_full if profile else 0.0)

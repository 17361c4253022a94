"""Deadline control: what the seconds left allow."""

from __future__ import annotations

import math
import warnings

from elastic_tf.choose.budget.ledger import Ledger
from elastic_tf.choose.budget.prior import StepCosts, first_step_seconds
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.head.solve import solvers

_LATE = 0.01  # of a deadline: what it may be passed by
_AIM = 0.97  # of a deadline: what is planned for; the rest is for steps slower than the last ones
_DRIFT = 0.25  # of a step's time: what it changes by on a shared device and back within seconds
_LEAST = 0.5  # of the present plan's time: another plan takes no less, or training stops early
_SELECTING = 0.2  # of a deadline's time at most: what selections after the first may take
_ERROR = 0.02  # of a predicted ratio, mean absolute: ResNet50 0.021, MobileNetV2 0.030 (bench.py)


class DeadlineControl:
    """Which `rho` ends on time, whether there is time to select, and when to stop.

    `probe_steps`: how many steps the first evaluation of the importance is thought to take.
    """

    def __init__(
        self,
        seconds: float,
        model: ElasticMixin,
        ledger: Ledger,
        costs: StepCosts,
        interval: int,
        probe_steps: float,
    ) -> None:
        self.seconds = seconds
        self._model, self._ledger, self._costs = model, ledger, costs
        self._interval, self._probe_steps = interval, probe_steps
        self._first_step = first_step_seconds(model, 1.0)  # before one was traced
        self._evaluating: float | None = None  # least seconds of an evaluation but the first
        self._evaluated_at: int | None = None  # epoch of the last one
        self._selected = 0.0  # seconds at the last selection
        self._look_at = 0  # step under a plan at which the end is looked at

    def check_feasible(self, smallest: float) -> None:
        """Refuse what no selection can keep; `smallest` feasible `rho`."""
        steps = self._ledger.steps_left
        if steps is None:
            raise ValueError(
                "A deadline needs to know how many steps an epoch has. Received: data of unknown "
                f"length with Deadline({self.seconds:g}). Give `fit` steps_per_epoch, or the "
                "dataset tf.data.experimental.assert_cardinality."
            )
        endings = (self._ledger.epochs - self._ledger.epoch) * self._ledger.ending
        needed = self._ledger.elapsed + smallest * steps * self._full_seconds + endings
        if needed > self.seconds:
            raise ValueError(
                f"The deadline is impossible. Received: Deadline({self.seconds:g}) for {steps} "
                f"steps. At the smallest feasible rho, {smallest:.3f}, they take until second "
                f"{needed:.1f}, selecting, tracing and unknown validation not counted. Give more "
                "seconds or train fewer epochs."
            )

    def has_time_to_select(self) -> bool:
        """Whether another selection takes a small part of the time since the last one only."""
        return self._seconds_of_one() <= _SELECTING * (self._ledger.elapsed - self._selected)

    def evaluated(self, epoch: int, seconds: float | None = None) -> None:
        """The importance was evaluated at that epoch; `seconds` unless it was the first time."""
        self._evaluated_at = epoch
        if seconds is not None:
            self._evaluating = min(seconds, self._evaluating or math.inf)

    def selected(self) -> None:
        """A selection was made now."""
        self._selected = self._ledger.elapsed
        self._look_at = 0

    def rho(self, smallest: float, present: float | None = None) -> float:
        """What ends on time with another plan than one of the ratio `present`, `smallest` at least.

        Where half of the present ratio is too much, it is better to stop early: few tensors,
        trained further alone, end up worse.
        """
        seconds = self._seconds_for_steps() - self._retrace - self._seconds_of_heads()
        full = (self._ledger.steps_left or 0) * self._full_seconds
        least = max(smallest, _LEAST * (present or 0.0))
        return min(max(seconds / full, least), 1.0) if full > 0.0 else 1.0

    def is_off(self, predicted: float, is_full: bool) -> bool:
        """Whether the end is so far off that another plan than that ratio pays for its tracing."""
        ledger = self._ledger
        if not ledger.is_settled or ledger.own < self._look_at:
            return False
        left = ledger.steps_left or 0
        self._look_at = ledger.own + left // 10
        full = left * self._full_seconds
        off = self._seconds_for_steps() - full * predicted
        known = self._costs.profile.uncertainty if self._costs.profile else 0.0
        least = max(full * max(known, _ERROR, _DRIFT * predicted), self._retrace)
        return abs(off) > least and not (off > 0.0 and is_full)

    def stops(self) -> bool:
        """Stop where one more step, and the end of its epoch, would be too late; whether so."""
        ledger, model = self._ledger, self._model
        ends = ledger.elapsed + ledger.before_the_end + self._seconds_of_heads()
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
                "fewer epochs, validate on less data, or tell how long the first validation takes: "
                "et.Deadline(seconds, validation=...).",
                stacklevel=4,
            )

    def _seconds_for_steps(self) -> float:
        """What is left for the steps to come, if the training ends where it is planned to."""
        ledger = self._ledger
        left = _AIM * self.seconds - ledger.elapsed - (ledger.epochs - ledger.epoch) * ledger.ending
        epochs = ledger.epochs - (self._evaluated_at or 0) - self._interval
        selections = max(math.ceil(epochs / self._interval), 0)
        return left - min(selections * self._seconds_of_one(), _SELECTING * max(left, 0.0))

    def _seconds_of_one(self) -> float:
        """Of a selection to come: the first evaluation of the importance traces, others do not."""
        evaluating = self._evaluating
        if evaluating is None:
            evaluating = self._probe_steps * self._full_seconds
        return evaluating + self._retrace

    def _seconds_of_heads(self) -> float:
        """What solving heads will take: about as long as a forward pass over the samples each."""
        rows, profile = self._model._elastic.rows, self._costs.profile
        times = sum((one.solution is None) + one.again for one in solvers(self._model))
        if rows is None or profile is None:
            return 0.0
        return times * 1e-6 * profile.t_forward * rows.samples.rows / rows.samples.batch_size

    @property
    def _retrace(self) -> float:
        """Seconds of tracing another plan."""
        seen = self._ledger.retrace
        return self._first_step if seen is None else seen

    @property
    def _full_seconds(self) -> float:
        """Of a full step: measured, or else by the profile."""
        measured, profile = self._ledger.full_seconds, self._costs.profile
        if measured is None and profile is not None:
            return 1e-6 * profile.t_full
        return measured or 0.0

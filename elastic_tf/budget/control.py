"""Keeps the budget during one `fit`: what was measured, what to ask for, when to choose anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from elastic_tf.budget.deadline import Deadline
from elastic_tf.budget.light import LightSteps
from elastic_tf.budget.pace import Pace
from elastic_tf.budget.ratio import RatioControl
from elastic_tf.budget.step_timer import FullStep, StepTimer
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.plan import Plan
from elastic_tf.selection.records import SelectionRecord

_MICROSECONDS = 1e6  # in a second
_TRACE = 2.0  # tracing a full step / tracing the selected one, at a guess
_SETTLED = 15  # calls under a selection before it is judged
_PAID_OFF = 10.0  # times the seconds of its tracing, likewise: else tracing is all there is
_STALL = 10.0  # times what timing a full step was thought to cost
_APART = 0.1  # difference of two ratios from which a line through their times is believed
_TOLD = 0.25  # of the steps: so many must have been light before it is said that many will be
_LIGHT = 0.9  # of the selection's step time: a light step takes less, or none is worth it


class Control:
    """Measures steps and decides from them.

    Args:
        model: the model that is trained.
        clock: seconds now.
        epochs: number of the epoch after the last one.
        steps: steps in an epoch, if known.
        share: part of the training time that timing full steps and selecting anew may take; 0
            measures no full step and never selects between two intervals.
        band: relative distance from `rho` within which the achieved ratio counts as kept.
        doubt: standard deviation of the profile's ratios from the achieved ones.
        deadline: seconds for the whole training, instead of a ratio.
        already: seconds of it that have passed.
    """

    def __init__(
        self,
        model: ElasticMixin,
        *,
        clock: Callable[[], float],
        epochs: int,
        steps: int | None,
        share: float,
        band: float,
        doubt: float,
        deadline: Deadline | None,
        already: float = 0.0,
    ) -> None:
        self.model = model
        self.pace = Pace(clock, epochs=epochs, steps=steps, already=already)
        self.ratio = RatioControl(band=band, doubt=doubt)
        self.timer = StepTimer(model, clock)
        # what follows from a deadline needs no full step: steps of two masks are measured
        self.share = share if deadline is None else 0.0
        self.deadline = deadline
        self.reserve = 0.0  # seconds that the end of the training takes
        self.light = LightSteps()
        self._full = FullStep(model, clock)
        self._clock = clock
        self._spent = 0.0
        self._mask = model.mask  # the present selection
        self._is_traced = False  # whether its steps had to be
        self._is_least = False  # whether there was time for nothing but the smallest one
        self._asks_least = False  # likewise, when it was asked for last
        self._selected_at = clock()
        self._since = 0  # calls since a selection or a decision against one
        self._made = self._light_made = 0  # steps

    def ask(self, rho: float, smallest: float) -> float:
        """What to ask the selector for, so that `rho` is achieved."""
        self.ratio.learn()
        # below the smallest feasible rho the selector is to say so
        return self.ratio.ask(rho, smallest=smallest) if rho >= smallest else rho

    def selected(self, record: SelectionRecord, *, changed: bool) -> None:
        """A selection was made; `changed`: its mask is another one."""
        line = self._line
        self.ratio.selected(record.predicted_ratio)
        if changed:
            self.pace.selected(self.ratio.thought, line[1] if line else 0.0)
        self._mask = record.mask
        self._is_least = self._asks_least
        self._is_traced = False
        self._since = 0
        self._selected_at = self._clock()

    def called(self, count: int) -> None:
        """The train function was called and made `count` steps."""
        traced, is_light = self.timer.traced, self.light.is_on
        self._made += count
        self._light_made += count * (is_light or self._is_least)
        seconds = self.pace.step(count, traced=traced, is_light=is_light)
        if is_light:
            self.light.step(seconds, count, traced=traced)
            self.timer.attach()
            return
        self._is_traced |= traced
        self._since += 1
        if self.timer.seconds:
            self.ratio.step(_MICROSECONDS * self.timer.seconds)
        if self.share and self.ratio.needs_full_step:
            self._time_full_step()
        self.timer.attach()  # another callback may have set a mask

    def reason(self, record: SelectionRecord, *, other_seconds: float) -> str | None:
        """Why another selection may be needed at once; None if there is no reason.

        Args:
            record: the present selection.
            other_seconds: what the selections to come will take.
        """
        settled = self._clock() - self._selected_at > _PAID_OFF * (self.pace.retrace or 0.0)
        if self._since < _SETTLED or not settled:
            return None
        if self.deadline is not None:
            if 2 * self.pace.measured < self.pace.span:
                return None
            cost = self.pace.retrace or 0.0
            return "deadline" if self._is_off(record, self.deadline, other_seconds, cost) else None
        return "ratio" if self.share and self.ratio.is_off(record.rho) else None

    def pays(
        self, present: SelectionRecord, other: SelectionRecord, *, other_seconds: float
    ) -> bool:
        """Whether to train `other` instead; if not, it is not thought of again for a while."""
        self._since = 0
        if np.array_equal(present.mask, other.mask):
            return False
        light = self.light.mask
        if light is not None and np.array_equal(light, other.mask):
            return False  # some light steps lose less than light steps alone
        cost = 0.0 if self.knows(other.mask) else self.pace.retrace or 0.0
        if self.deadline is not None:
            return self._is_off(present, self.deadline, other_seconds, cost)
        if not self._can_afford(cost):
            return False
        self._spent += cost
        return True

    def state(self) -> dict[str, Any]:
        """What was learned and spent, as JSON values."""
        return {
            "ratio": self.ratio.state(),
            "spent": self._spent,
            "elapsed": self.pace.elapsed,
        }

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from `state`; the time without power does not count."""
        self.ratio.go_on(state["ratio"])
        self._spent = state["spent"]
        self.pace.already(state["elapsed"])

    def knows(self, mask: np.ndarray) -> bool:
        """Whether the steps under that mask need not be traced."""
        plan = None if mask.all() else Plan.from_mask(mask)
        return self.model._elastic.functions.get(plan) is not None

    def _is_off(
        self, record: SelectionRecord, deadline: Deadline, other_seconds: float, cost: float
    ) -> bool:
        return deadline.is_off(
            self.pace,
            other_seconds=other_seconds,
            cost=cost,
            can_grow=record.rho < 1.0 and not record.mask.all(),
            light_share=None if self.light.mask is None else self._light_share(other_seconds),
        )

    def offer_light_steps(self, mask: np.ndarray, ratio: float) -> None:
        """The cheapest mask, for steps in between that keep the deadline.

        Args:
            mask: of a light step.
            ratio: its step time / full step time, as predicted.
        """
        whole = self.ratio.thought
        accumulates = self.model._elastic.accumulation is not None
        worth = ratio < _LIGHT * whole and not accumulates and not np.array_equal(mask, self._mask)
        self.light.offer(mask if worth else None, ratio, whole)

    def take_turns(self, *, other_seconds: float) -> None:
        """Let the next call make light steps if the deadline asks for some.

        Args:
            other_seconds: what the selections to come will take.
        """
        was_on = self.light.is_on
        if self.light.mask is None or (self.pace.measured < _SETTLED and not was_on):
            return
        share = self._light_share(other_seconds)
        if self.light.turn(share, self.pace.steps_per_call) != was_on:
            self.model.set_mask(self._mask if was_on else self.light.mask)

    def warn_if_light(self, *, predicted_seconds: float, other_seconds: float) -> bool:
        """Say so if many steps of the training will be light; returns whether it was said.

        Args:
            predicted_seconds: of a step of the selection, by the profile.
            other_seconds: what the selections to come will take.
        """
        mask = self._mask if self._is_least else self.light.mask
        left, seconds = self.pace.steps_left, self.pace.step_seconds
        if self.deadline is None or mask is None or not left:
            return False
        if self._light_made < _TOLD * (self._made + left):
            return False  # what the first epochs take is not what the others will take
        share = 1.0 if self._is_least else self._light_share(other_seconds)
        return self.deadline.warn_if_light(
            self._light_made + round(left * share),
            self._made + left,
            trained=f"{mask.sum()} of {len(mask)} tensors",
            slower=None if seconds is None else seconds / predicted_seconds,
            between=self.pace.fixed_left,
        )

    def end_light_steps(self) -> None:
        """Train the selection again: an epoch ends, or another one may be made."""
        if self.light.is_on:
            self.light.is_on = False
            self.model.set_mask(self._mask)

    def _light_share(self, other_seconds: float) -> float:
        if self.deadline is None or self.light.mask is None:
            return 0.0
        return self.deadline.light_share(
            self.pace,
            light_seconds=self.light.seconds(self.pace.step_seconds or 0.0),
            other_seconds=other_seconds,
            cost=0.0 if self.knows(self.light.mask) else self.pace.retrace or 0.0,
        )

    @property
    def _line(self) -> tuple[float, float] | None:
        """Seconds of a full step, and seconds of every step that no mask changes; None if unknown.

        The fixed part is waiting for data and what other callbacks do. The line goes through the
        steps of the selection and the light ones, if they are measured and differ enough; else what
        was timed apart from the steps is fixed.
        """
        whole, ratio = self.pace.step_seconds, self.ratio.thought
        if whole is None:
            return None
        light, apart = self.light, ratio - self.light.ratio
        if light.is_known and apart > _APART:
            full = max(whole - light.seconds(whole), 0.0) / apart
            fixed = whole - ratio * full
            if full > 0.0 and 0.0 <= fixed:
                return full, fixed
        step = self.ratio.step_microseconds
        fixed = 0.0 if step is None else max(whole - step / _MICROSECONDS, 0.0)
        return (whole - fixed) / ratio, fixed

    def retraced(self) -> float:
        """Seconds that tracing the present selection took; 0 if it was traced before."""
        return (self.pace.retrace or 0.0) if self._is_traced else 0.0

    def rho_in_time(
        self, deadline: Deadline, *, t_full: float, smallest: float, other_seconds: float
    ) -> float:
        """`rho` that meets the deadline from here on, at least `smallest`.

        Args:
            deadline: of the training.
            t_full: microseconds of a full step by the profile, for as long as none was measured.
            smallest: smallest feasible rho.
            other_seconds: what the selections, this one's tracing too, will take.
        """
        full, fixed = self._line or (t_full / _MICROSECONDS, 0.0)
        rho = deadline.rho(
            self.pace,
            full_seconds=full,
            fixed_seconds=fixed,
            other_seconds=other_seconds,
            smallest=smallest,
        )
        self._asks_least = rho <= smallest
        return max(rho, smallest)

    def is_over(self) -> bool:
        """Whether the training must stop now."""
        return self.deadline is not None and self.deadline.is_over(self.pace, self.reserve)

    def _time_full_step(self) -> None:
        accumulates = self.model._elastic.accumulation is not None
        if self.timer.batch is None or self.model.run_eagerly or accumulates:
            return  # no batch, no graph, or no step that holds all the work of one
        step = (self.ratio.step_microseconds or 0.0) / _MICROSECONDS / self.ratio.thought
        cost = 2.5 * step
        if not self._full.is_traced:
            cost += _TRACE * (self.pace.retrace or 0.0) + 2.0 * step
        if not self._can_afford(cost):
            return
        started = self._clock()
        seconds = self._full.seconds(*self.timer.batch)
        # a device that sleeps meanwhile, or a clock that jumps, is no expense
        self._spent += min(self._clock() - started, _STALL * cost)
        if seconds > 0.0:
            self.ratio.full_step(_MICROSECONDS * seconds)

    def _can_afford(self, seconds: float) -> bool:
        """Whether so much more stays within the share of the training time."""
        whole = self.pace.elapsed + (self.pace.left or 0.0)
        return self._spent + seconds <= self.share * whole

"""The deadline: what `rho` the time left allows, and when to choose anew or to stop."""

from __future__ import annotations

import math
import warnings
from typing import Any

from elastic_tf import arguments
from elastic_tf.budget.pace import Pace
from elastic_tf.budget.ratio import rho_for_deadline

# Parts of the deadline: where the end is aimed at, and from where to where it may be expected.
_AIM, _EARLIEST, _LATEST = 0.985, 0.972, 0.995
_AMPLE = 1.05  # times what is left: light steps can take away, nothing else can add
_LIGHTER = 1.1  # times the time of a light step: less is not worth tracing one
_SLOW = 2.0  # times what the profile says: more than waiting for data, the device is slower
_BETWEEN = 0.1  # part of the deadline: what is not spent on steps is worth a word
_PAYS = 3.0  # times its cost: what a selection between two others must bring
_MUCH = 0.4  # part of the steps: if so many had to be light, another selection is better
_MARGIN, _ENDING_MARGIN = 2.0, 1.15  # a step may take twice its mean, validation a bit more
_LONGEST = 1e9  # seconds: thirty years
_WAYS_OUT = "Give more seconds, train fewer epochs, or make `probe_size` smaller."


class Deadline:
    """Seconds that a whole `fit` may take.

    The rest of the training is planned anew at every selection, for a little more than there is
    time; some steps are light then, as many as it takes to end on time. Between two selections
    it is planned anew once too many would have to be light, or the training is expected to end much
    too early. Selecting costs tracing, so that a difference that would not pay for it is left to
    the next selection.

    Args:
        seconds: from the beginning of the training to its end, everything included.
    """

    def __init__(self, seconds: Any) -> None:
        self.seconds = arguments.number(
            "deadline",
            seconds,
            low=0.0,
            high=_LONGEST,
            above=True,
            hint="It counts the seconds from the beginning of `fit`: 600 for ten minutes.",
        )

    def rho(
        self,
        pace: Pace,
        *,
        full_seconds: float,
        fixed_seconds: float,
        other_seconds: float,
        smallest: float = 0.0,
    ) -> float:
        """Step time / full step time that ends on time, in (0, 1]; 0 if the time is over already.

        Args:
            pace: of the training so far.
            full_seconds: of a full training step.
            fixed_seconds: what passes at each step whatever is trained: waiting for data, other
                callbacks.
            other_seconds: what else is to come but steps and epochs: selections, tracing.
            smallest: ratio of a light step; where the answer lies well above it, it is ample.
        """
        steps = pace.steps_left or 0
        other = other_seconds + pace.fixed_left + steps * fixed_seconds
        left = _AIM * self.seconds - pace.elapsed
        if not steps or left <= other:
            return 0.0
        rho = rho_for_deadline(
            left, steps=steps, full_step_seconds=full_seconds, other_seconds=other
        )
        return min(_AMPLE * rho, 1.0) if rho > _LIGHTER * smallest > 0.0 else rho

    def light_share(
        self, pace: Pace, *, light_seconds: float, other_seconds: float, cost: float
    ) -> float:
        """Part of the steps to come that must be light to end on time, in [0, 1].

        Args:
            pace: of the training so far.
            light_seconds: of a light step.
            other_seconds: selections to come.
            cost: seconds of tracing a light step, if it is not traced yet.
        """
        steps, heavy = pace.steps_left, pace.step_seconds
        if not steps or heavy is None or light_seconds >= heavy:
            return 0.0
        late = pace.elapsed + steps * heavy + pace.fixed_left + other_seconds - _AIM * self.seconds
        if cost and late < (_LATEST - _AIM) * self.seconds:
            return 0.0
        return min(max((late + cost) / (steps * (heavy - light_seconds)), 0.0), 1.0)

    def is_off(
        self,
        pace: Pace,
        *,
        other_seconds: float,
        cost: float,
        can_grow: bool,
        light_share: float | None = None,
    ) -> bool:
        """Whether the training should choose anew before the next selection is due.

        Args:
            pace: of the training so far.
            other_seconds: selections to come.
            cost: seconds that choosing anew takes.
            can_grow: whether more could be trained.
            light_share: part of the steps that would be light otherwise; None: there are none.
        """
        left = pace.left
        if left is None:
            return False
        off = pace.elapsed + left + other_seconds - _AIM * self.seconds
        if off > (_LATEST - _AIM) * self.seconds:
            if light_share is None:
                return off > cost
            return light_share > _MUCH and off > _PAYS * cost
        return can_grow and off < (_EARLIEST - _AIM) * self.seconds and -off > _PAYS * cost

    def is_over(self, pace: Pace, reserve: float) -> bool:
        """Whether another call of the train function, and the end of its epoch, would be too late.

        Args:
            pace: of the training so far.
            reserve: seconds of what else must come before the end.
        """
        more = (pace.step_seconds or 0.0) * pace.steps_per_call
        needed = _MARGIN * more + _ENDING_MARGIN * pace.longest_ending + reserve
        return bool(pace.steps_left) and pace.elapsed + needed > self.seconds

    def check(
        self, steps: int | None, full_seconds: float, least: float, *, spent: float = 0.0
    ) -> None:
        """Refuse what is impossible from the start.

        Args:
            steps: of the whole training; None if not known.
            full_seconds: what they take in full, by the profile.
            least: smallest feasible rho.
            spent: seconds that have passed.
        """
        if steps is None:
            raise ValueError(
                "A deadline needs to know how many steps an epoch has. Received: data of unknown "
                f"length with deadline={self.seconds:g}. Give `fit` steps_per_epoch, or the "
                "dataset tf.data.experimental.assert_cardinality."
            )
        needed = spent + least * full_seconds
        if needed > self.seconds:
            raise ValueError(
                f"The deadline is impossible. Received: deadline={self.seconds:g} for {steps} "
                f"steps, {spent:.1f} seconds after its beginning. At the smallest feasible rho "
                f"they take {least * full_seconds:.1f} seconds by the profile, selecting, tracing "
                f"and validation not counted. Give more than {math.ceil(10 * needed) / 10:.1f} "
                "seconds, and 5 to 20 on top for the first selection; train fewer epochs; or "
                "profile this device again."
            )

    def check_first_step(self, spent: float) -> None:
        """Refuse a training whose time was used up by its first selection.

        Args:
            spent: seconds that have passed.
        """
        if spent >= self.seconds:
            raise ValueError(
                f"The deadline is over before the first step. Received: deadline={self.seconds:g}, "
                f"and {spent:.1f} seconds until the importance for the first selection was traced "
                "and evaluated. Give more seconds, or make `probe_size` smaller."
            )

    def warn_if_short(
        self, steps: int | None, full_seconds: float, least: float, *, spent: float
    ) -> None:
        """Say so if not all steps can be made in the time left; arguments as in `check`."""
        shortest = least * full_seconds
        late = spent + shortest - self.seconds
        if steps and late > 0.0:
            left_out = min(math.ceil(steps * late / shortest), steps)
            warnings.warn(
                f"The deadline of {self.seconds:g} s is too short for all {steps} steps: "
                f"{spent:.1f} s have passed until the first selection was made, and at the "
                f"smallest feasible rho the steps take {shortest:.1f} s by the profile, tracing "
                f"and validation not counted. At least {left_out} steps will be left out. "
                f"{_WAYS_OUT}",
                stacklevel=3,
            )

    def warn_if_light(
        self, light: int, steps: int, *, trained: str, slower: float | None, between: float
    ) -> bool:
        """Say so if many steps of the training will be light; returns whether it was said.

        Args:
            light: light steps of the training, those to come included.
            steps: of the training.
            trained: what a light step trains.
            slower: time of a step of the selection / what the profile says; None: not measured.
            between: seconds that the beginnings and ends of epochs to come take.
        """
        if light <= _MUCH * steps:
            return False
        profile = (
            f"A step of the selection takes {slower:.1f} times what the profile says: profile this "
            "device again as it is used. "
            if slower is not None and slower > _SLOW
            else ""
        )
        epochs = (
            f"The beginnings and ends of epochs to come take {between:.1f} s: a smaller validation "
            "set, or options.autotune.enabled = False on the tf.data pipelines, shortens them. "
            if between > _BETWEEN * self.seconds
            else ""
        )
        warnings.warn(
            f"The deadline of {self.seconds:g} s leaves little time for what was selected: as it "
            f"is planned now, about {light} of the {steps} steps train the cheapest mask alone, "
            f"{trained}, in between or as the selection itself. Expect less of their accuracy. "
            f"{profile}{epochs}{_WAYS_OUT}",
            stacklevel=3,
        )
        return True

    def warn_if_late(self, pace: Pace, *, selecting: float) -> None:
        """Say at the end by how much the deadline was missed, and where the seconds went.

        Args:
            pace: of the training that ends.
            selecting: seconds that selections took, tracing their steps not counted.
        """
        late = pace.elapsed - self.seconds
        if late > 0.0:
            known = selecting + pace.in_tracing + pace.in_steps + pace.in_endings
            warnings.warn(
                f"`fit` took {pace.elapsed:.1f} s, {max(late, 0.1):.1f} s more than its deadline "
                f"of {self.seconds:g} s: {selecting:.1f} s for selecting, {pace.in_tracing:.1f} s "
                f"for tracing, {pace.in_steps:.1f} s for steps, {pace.in_endings:.1f} s for the "
                f"ends of epochs with validation, {max(pace.elapsed - known, 0.0):.1f} s for all "
                f"else. {_WAYS_OUT}",
                stacklevel=3,
            )

    def expectation(
        self, steps: int | None, full_seconds: float, least: float, *, rho: float, spent: float
    ) -> str:
        """What is said before training; arguments as in `check`, and the first rho."""
        ample = (
            ": every tensor that is expected to lower the loss is trained, and if there is time "
            "for that, `fit` ends before the deadline"
        )
        return (
            f"Deadline {self.seconds:g} s, of which {spent:.1f} s have passed until the first "
            f"selection was made: by the profile the {steps} steps take {full_seconds:.1f} s in "
            f"full and {least * full_seconds:.1f} s at the smallest feasible rho, {least:.3f}; "
            f"tracing and validation come on top. Starts with rho {rho:.3f}"
            f"{ample if rho >= 1.0 else ''}."
        )

    def stopping(self, steps: int, *, elapsed: float) -> str:
        """What is said when that many steps are left out, so many seconds after the beginning."""
        if elapsed > self.seconds:
            return (
                f"Training stops {steps} steps early: the deadline of {self.seconds:g} s is over."
            )
        return (
            f"Training stops {steps} steps early, or it would end after the deadline of "
            f"{self.seconds:g} s."
        )

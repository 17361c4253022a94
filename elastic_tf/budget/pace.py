"""Where the seconds of a `fit` go, and how many the rest of it still needs.

Between the marks that a callback sets, all the time of a `fit` falls into steps (with waiting for
data and with what other callbacks do at every batch), beginnings of epochs (a shuffle buffer is
filled), ends of epochs (validation, checkpoints), first steps under a new selection (tracing) and
the callback's own work.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

import numpy as np

_LONGEST, _SHORTEST = 400, 30  # calls that tell how long the next ones will take
_OWN = 20  # calls under a mask that tell it without those before
_OF_THE_REST = 8  # in between, one for so many that are still to come
_ENDINGS = 5  # ends of epochs that tell of the next ones
_AGAIN = 0.5  # part of the first ending that is expected of those after the next one
_SLOWER = 2.0  # times: a greater change of the speed since then is not believed
_STRAY = 3.0  # times the median: more is not believed to come again


class Pace:
    """The clock of one `fit`.

    Args:
        clock: seconds now.
        epochs: number of the epoch after the last one.
        steps: steps in an epoch; None if not known before one has passed.
        already: seconds that had passed when the clock was made.

    Attributes:
        epoch: the present epoch.
        done: steps made in it.
        steps_per_call: steps in a call of the train function.
        in_steps: seconds that steps have taken so far.
        in_tracing: seconds of the first steps under a mask, which trace it.
        in_endings: seconds of the ends of epochs.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        epochs: int,
        steps: int | None,
        already: float = 0.0,
    ) -> None:
        self.clock = clock
        self.epochs = epochs
        self.steps = steps
        self.epoch = 0
        self.done = 0
        self.steps_per_call = 1
        self.in_steps = self.in_tracing = self.in_endings = 0.0
        self._mark = clock()
        self._started = self._mark - already
        self._steps: deque[float] = deque(maxlen=_LONGEST)
        self._means: dict[int, float] = {}  # of the last ones, by their number
        self._own = 0  # of them under the present mask
        self._ratio = 1.0
        self._first = 0.0  # the last first step under a new selection, whole
        self._beginnings: list[float] = []
        self._endings: list[tuple[float, float]] = []  # with the speed at that time

    def epoch_begins(self, epoch: int) -> None:
        """What passed since the last step was the end of an epoch."""
        if self.done:
            self._ends_epoch()
            self.steps = self.steps or self.done
        self.epoch = epoch
        self.done = 0

    def ends(self) -> None:
        """What passed since the last step was the end of the last epoch."""
        if self.done:
            self._ends_epoch()

    def selected(self, ratio: float, fixed_seconds: float = 0.0) -> None:
        """Another mask is trained: until its own steps are known, those before tell of them.

        Args:
            ratio: its step time / full step time, as it is thought to be.
            fixed_seconds: of a step that no mask changes.
        """
        factor = ratio / self._ratio
        fixed = [min(seconds, fixed_seconds) for seconds in self._steps]
        scaled = [f + factor * (seconds - f) for f, seconds in zip(fixed, self._steps)]
        self._steps = deque(scaled, maxlen=_LONGEST)
        self._means.clear()
        self._ratio = ratio
        self._own = 0

    def resume(self) -> None:
        """The callback's own work is over."""
        self._mark = self.clock()

    def step(self, count: int, *, traced: bool, is_light: bool = False) -> float:
        """`count` steps have passed in one call.

        Args:
            count: steps.
            traced: they were the first of their mask.
            is_light: they were not those of the selection.

        Returns:
            Seconds of each.
        """
        seconds = self.clock() - self._mark
        if traced:
            self.in_tracing += seconds
        else:
            self.in_steps += seconds
        if not is_light:
            self._note(seconds, count, traced)
        self.done += count
        self.steps_per_call = max(count, self.steps_per_call)
        return seconds / count

    @property
    def elapsed(self) -> float:
        """Seconds since the training began."""
        return self.clock() - self._started

    def already(self, seconds: float) -> None:
        """So many seconds were spent before an interruption."""
        self._started -= seconds

    @property
    def span(self) -> int:
        """Calls that tell how long the next ones will take: the more, the more are to come.

        The speed of a shared device drifts; what one second shows does not hold for ten minutes.
        """
        rest = (self.steps_left or 0) // (_OF_THE_REST * self.steps_per_call)
        return min(max(rest, _SHORTEST), _LONGEST)

    @property
    def measured(self) -> int:
        """Calls under the present mask that tell how long a step takes."""
        return self._own

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step under the present mask, all in all; None before one is measured."""
        return self._mean(self.span)

    @property
    def retrace(self) -> float | None:
        """Seconds that the first step under a new mask takes beyond a usual one."""
        return max(self._first - (self.step_seconds or 0.0), 0.0) if self._first else None

    @property
    def ending(self) -> float:
        """Seconds from the last step of an epoch to the next epoch; 0 before one was seen."""
        return statistics.median_low(self._endings_now)  # one stall is no rule

    @property
    def longest_ending(self) -> float:
        """The same, of the longest one after the first."""
        return max(self._endings_now)

    @property
    def steps_left(self) -> int | None:
        """Steps to the end of the training; None while not known."""
        if self.steps is None:
            return None
        return max((self.epochs - self.epoch) * self.steps - self.done, 0)

    @property
    def fixed_left(self) -> float:
        """Seconds of the epochs' beginnings and endings still to come."""
        epochs = self.epochs - self.epoch
        usual = self.step_seconds or 0.0
        beginning = statistics.median(self._beginnings) if self._beginnings else usual
        begins = epochs - (1 if self.done else 0)
        ending = self.ending
        # the first ending traces the validation: how much of it comes again is not known yet
        later = ending if len(self._endings) != 1 else _AGAIN * ending
        endings = ending + (epochs - 1) * later if epochs > 0 else 0.0
        return endings + begins * max(beginning - usual, 0.0)

    @property
    def left(self) -> float | None:
        """Seconds to the end under the present mask, selections not counted."""
        steps, seconds = self.steps_left, self.step_seconds
        return None if steps is None or seconds is None else steps * seconds + self.fixed_left

    def _ends_epoch(self) -> None:
        seconds = self.clock() - self._mark
        self.in_endings += seconds
        self._endings.append((seconds, self._speed))

    def _note(self, seconds: float, count: int, traced: bool) -> None:
        """A call under the present mask took so long."""
        if traced:
            self._first = seconds
        elif self.done == 0:
            self._beginnings.append(seconds)
        else:
            self._own += 1
            if self._own == _OWN:  # enough: those of other masks are no longer needed
                self._steps = deque(list(self._steps)[1 - _OWN :], maxlen=_LONGEST)
            self._steps.append(seconds / count)
            self._means.clear()

    def _mean(self, span: int) -> float | None:
        """Of the last calls, strays cut; made once between two steps, for it is asked often."""
        if not self._steps:
            return None
        if span not in self._means:
            recent = np.array(self._steps)[-span:]
            self._means[span] = float(np.minimum(recent, _STRAY * np.median(recent)).mean())
        return self._means[span]

    @property
    def _speed(self) -> float:
        """Seconds of a full step lately; 0 if not known."""
        return (self._mean(_SHORTEST) or 0.0) / self._ratio

    @property
    def _endings_now(self) -> list[float]:
        """The endings seen, as long as they would take at the present speed."""
        now = self._speed
        known = self._endings[1:] or self._endings  # the first validation is traced
        return [
            seconds * (min(max(now / then, 1.0 / _SLOWER), _SLOWER) if then and now else 1.0)
            for seconds, then in known[-_ENDINGS:]
        ] or [0.0]

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

_LONGEST, _SHORTEST = 400, 30  # calls that tell how long the next ones will take
_OF_THE_REST = 8  # in between, one for so many that are still to come
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
        self._mark = clock()
        self._started = self._mark - already
        self._steps: deque[float] = deque(maxlen=_LONGEST)
        self._first = 0.0  # the last first step under a new selection, whole
        self._beginnings: list[float] = []
        self._endings: list[float] = []

    def epoch_begins(self, epoch: int) -> None:
        """What passed since the last step was the end of an epoch."""
        if self.done:
            self._endings.append(self.clock() - self._mark)
            self.steps = self.steps or self.done
        self.epoch = epoch
        self.done = 0

    def selected(self) -> None:
        """Another mask is trained: the steps measured so far are not those to come."""
        self._steps.clear()

    def resume(self) -> None:
        """The callback's own work is over."""
        self._mark = self.clock()

    def step(self, count: int, *, traced: bool) -> None:
        """`count` steps have passed in one call; `traced`: they were the first of their mask."""
        seconds = self.clock() - self._mark
        if traced:
            self._first = seconds
        elif self.done == 0:
            self._beginnings.append(seconds)
        else:
            self._steps.append(seconds / count)
        self.done += count
        self.steps_per_call = max(count, self.steps_per_call)

    @property
    def elapsed(self) -> float:
        """Seconds since the training began."""
        return self.clock() - self._started

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
        return len(self._steps)

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step under the present mask, all in all; None before one is measured."""
        if not self._steps:
            return None
        recent = list(self._steps)[-self.span :]
        most = _STRAY * statistics.median(recent)
        return statistics.fmean(min(seconds, most) for seconds in recent)

    @property
    def retrace(self) -> float | None:
        """Seconds that the first step under a new mask takes beyond a usual one."""
        return max(self._first - (self.step_seconds or 0.0), 0.0) if self._first else None

    @property
    def ending(self) -> float:
        """Seconds from the last step of an epoch to the next epoch; 0 before one was seen."""
        # the first validation is traced
        return statistics.median(self._endings[1:] or self._endings or [0.0])

    @property
    def longest_ending(self) -> float:
        """The same, of the longest one after the first."""
        return max(self._endings[1:] or self._endings or [0.0])

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
        return epochs * self.ending + begins * max(beginning - usual, 0.0)

    @property
    def left(self) -> float | None:
        """Seconds to the end under the present mask, selections not counted."""
        steps, seconds = self.steps_left, self.step_seconds
        return None if steps is None or seconds is None else steps * seconds + self.fixed_left

"""Where the seconds of a `fit` go, and how many the rest of it needs."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_SETTLED = 20  # steps under a plan that tell it without those before: 3 % with a spread of 15 %
_LONGEST = 200  # steps that tell the next ones; the speed of a shared device drifts
_RECENT = 10  # steps whose median tells how fast the machine is
_FIRST = 4  # steps that tell how fast it was


class Pace:
    """How much longer everything takes now than when the machine was fast, by its steps."""

    def __init__(self) -> None:
        self.slower = 1.0  # a step now / then
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._usual = 0.0  # seconds of a step while the machine was fast

    def step(self, seconds: float) -> None:
        """A step took so long."""
        self._recent.append(seconds)
        step = statistics.median(self._recent)
        self._usual = step if len(self._recent) <= _FIRST else min(self._usual, step)
        self.slower = max(step / self._usual, 1.0)


class Ledger:
    """The clock of one `fit`: steps, ends of epochs, and the callback's own work.

    A step under a plan is thought to take `full_seconds` times the plan's predicted ratio, data
    waiting and other callbacks in it. `epochs` is the number of the epoch after the last one,
    `steps` those in an epoch, None if not known before one has passed.
    """

    def __init__(self, clock: Callable[[], float], *, epochs: int, steps: int | None) -> None:
        self.epochs, self.steps = epochs, steps
        self.epoch = self.done = 0  # steps made in the present epoch
        self.own = 0  # steps under the present plan, but for its first one
        self.deadline: float | None = None  # seconds of all that may pass
        self.retrace: float | None = None  # seconds of the last such first step beyond a usual one
        self._clock, self._began, self._mark = clock, clock(), 0.0
        self.ratio = 1.0  # that is predicted of the present plan
        self._full: deque[float] = deque(maxlen=_LONGEST)
        self._slowest: deque[float] = deque(maxlen=_SETTLED)  # seconds of the last calls
        self._is_new = True  # no step under the plan was made
        self.foreseen = 0.0, 0.0  # seconds of an end of an epoch; of the first one beyond them
        self._endings: list[float] = []
        self.pace = Pace()
        self.seconds: dict[str, float] = {}  # where they went, by name; their sum is `elapsed`
        self._counted = 0.0

    def count(self, name: str) -> None:
        """What passed since the last call went into that."""
        now = self.elapsed
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._counted
        self._counted = now

    def said(self) -> str:
        """Where the seconds went, the most first."""
        parts = sorted(self.seconds.items(), key=lambda part: -part[1])
        told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts if seconds >= 0.05)
        return f"Seconds: {told}; {math.fsum(self.seconds.values()):.1f} in all."

    @property
    def elapsed(self) -> float:
        """Seconds since the training began."""
        return self._clock() - self._began

    def already(self, seconds: float) -> None:
        """So many seconds had passed before."""
        self._began -= seconds
        self._mark += seconds

    def epoch_begins(self, epoch: int, done: int = 0) -> None:
        """What passed since the last step was the end of an epoch."""
        self.count("ends of epochs" if self.done else "start")
        if self.done:
            self._endings.append(self.elapsed - self._mark)
            self.steps = self.steps or self.done
        self.epoch, self.done = epoch, done

    def plan(self, ratio: float) -> None:
        """Another plan is trained from now on, of that predicted ratio."""
        self.ratio, self.own, self._is_new = ratio, 0, True

    def resume(self) -> None:
        """The callback's own work is over."""
        self._mark = self.elapsed

    def step(self, count: int) -> None:
        """A call of the train function has made `count` steps."""
        self.count("first steps" if self._is_new else "steps")
        seconds = self.elapsed - self._mark
        self.done += count
        if self._is_new:  # it was traced
            self.retrace = max(seconds - count * self.step_seconds, 0.0)
            self._is_new = False
            return
        self.own += 1
        if self.own == _SETTLED:
            self._full = deque(list(self._full)[1 - _SETTLED :], maxlen=_LONGEST)
        self._full.append(seconds / count / self.ratio)
        self.pace.step(self._full[-1])
        self._slowest.append(seconds)

    @property
    def is_settled(self) -> bool:
        """Whether the steps of the present plan are known."""
        return self.own >= _SETTLED

    @property
    def full_seconds(self) -> float:
        """Mean of seconds / predicted ratio over the last steps; 0 before one was measured."""
        return statistics.fmean(self._full) if self._full else 0.0

    @property
    def step_seconds(self) -> float:
        """Seconds of a step of the present plan; 0 before one was measured."""
        return self.full_seconds * self.ratio

    @property
    def steps_left(self) -> int | None:
        """Steps to the end of the training; None while not known."""
        if self.steps is None:
            return None
        return max((self.epochs - self.epoch) * self.steps - self.done, 0)

    @property
    def ending(self) -> float:
        """Seconds from the last step of an epoch to the next epoch."""
        return self._endings[-1] if self._endings else sum(self.foreseen)

    @property
    def endings_left(self) -> float:
        """Seconds of the ends of all epochs to come; the first one traces the validation."""
        usual, more = self.foreseen
        if self._endings:
            usual = self._endings[-1] - more * (len(self._endings) == 1)
        return (self.epochs - self.epoch) * max(usual, 0.0) + more * (not self._endings)

    @property
    def before_the_end(self) -> float:
        """Seconds that one more call and the end of its epoch take at most, as seen lately."""
        endings = self._endings[1:] or [self.ending]
        return max(self._slowest, default=0.0) + max(endings)


def finished(logs: Any) -> Any:
    """`logs`, once the device has computed them."""
    for value in tf.nest.flatten(logs):
        if tf.is_tensor(value):
            value.numpy()
    return logs

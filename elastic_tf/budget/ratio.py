"""The budget: what part of a full training step the selected tensors may take, and keeping it.

`rho` is a number, a schedule `epoch -> rho`, or follows from a deadline. Times are microseconds per
step unless the name says seconds.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Union

from elastic_tf import arguments
from elastic_tf.selection.selector import check_rho

if TYPE_CHECKING:
    from elastic_tf.timing.profile import TimingProfile

#: A ratio, or a schedule that gives one for each epoch.
Rho = Union[float, Callable[[int], float]]

# A profile whose savings are delivered to less than a fifth, or twice over, is not of this device.
_LEAST_DELIVERED, _MOST_DELIVERED = 0.2, 2.0
_SURE = 2.0  # standard errors
_VAGUE = 0.02  # standard error of a ratio above which more full steps are timed
_LEAST_ERROR = 0.01  # of a ratio: a full step beside the training is not quite one of it
_UNKNOWN = 0.1  # likewise, of a profile that does not say
_OWN_ERROR = 0.02  # of the prediction of one mask, standard deviation
_NEIGHBOURS = 3  # steps that a full step is held against: those right before it
# Steps between two full steps; after the first six steps Keras 2.15 looks for slow callbacks.
_APART = 5
_SHORTEST = 1e-9  # seconds of a step
_RECENT = 12  # steps that tell the present speed
_MOVED = 0.15  # relative change of it by which full steps timed before are out of date


def rho_at(rho: Rho, epoch: int) -> float:
    """Allowed step time / full step time in one epoch.

    Args:
        rho: a number in (0, 1], or a schedule `epoch -> rho`.
        epoch: the epoch asked for, from 0.

    Returns:
        A number in (0, 1].

    Raises:
        ValueError: the number, or what the schedule returned, is not in (0, 1].
    """
    arguments.count("epoch", epoch, least=0)
    if not callable(rho):
        check_rho(rho)
        return float(rho)
    value = rho(epoch)
    check_rho(value, where=f" from the schedule at epoch {epoch}")
    return float(value)


def step_budget(rho: float, profile: TimingProfile) -> float:
    """Microseconds that a training step may take: rho * t_full."""
    check_rho(rho)
    arguments.profile("profile", profile, "t_full")
    return float(rho) * profile.t_full


def backward_budget(rho: float, profile: TimingProfile) -> float:
    """Microseconds left for the backward pass and the update: rho * t_full - t_forward."""
    arguments.profile("profile", profile, "t_full", "t_forward")
    return step_budget(rho, profile) - profile.t_forward


def doubt(profile: TimingProfile) -> float:
    """Standard deviation of a profile's ratios from the achieved ones, at a guess.

    A profile that was corrected by the clock knows how uncertain it is; one that does not, such as
    a table from elsewhere, may be far off.
    """
    arguments.profile("profile", profile, "uncertainty")
    if not profile.uncertainty:
        return _UNKNOWN
    return min(math.hypot(profile.uncertainty / 2.0, _OWN_ERROR), _UNKNOWN)


def rho_for_deadline(
    seconds: float,
    *,
    steps: int,
    full_step_seconds: float,
    other_seconds: float = 0.0,
    smallest: float = 0.0,
) -> float:
    """`rho` with which the remaining steps end on time.

    rho = (seconds - other_seconds) / (steps * full_step_seconds), at most 1.

    Args:
        seconds: time left until the deadline.
        steps: training steps left, at least 1.
        full_step_seconds: time of a full training step.
        other_seconds: what else the rest of the fit takes: importance, tracing, validation.
        smallest: smallest feasible `rho`.

    Raises:
        ValueError: not even `smallest` ends on time; the message says what is needed.
    """
    arguments.number("seconds", seconds)
    arguments.count("steps", steps)
    arguments.number("full_step_seconds", full_step_seconds, low=_SHORTEST)
    arguments.number("other_seconds", other_seconds, low=0.0)
    arguments.number("smallest", smallest, low=0.0, high=1.0)
    rho = (seconds - other_seconds) / (steps * full_step_seconds)
    if not (rho > 0.0 and rho >= smallest):
        needed = other_seconds + steps * full_step_seconds * smallest
        raise ValueError(
            f"The deadline cannot be met. Received: seconds={seconds!r} for steps={steps!r} of "
            f"full_step_seconds={full_step_seconds!r}, and other_seconds={other_seconds!r}. At "
            f"the smallest feasible rho of {smallest:.4f} {needed:.4g} seconds are needed."
        )
    return min(rho, 1.0)


class RatioControl:
    """Learns from measured steps what to ask the selector for, so that `rho` is really achieved.

    A profile predicts savings: 1 - predicted ratio. What share of them the device delivers is
    learned from the achieved ratio, achieved = 1 - delivered * (1 - predicted), which is exact for
    a full step. Both times of the achieved ratio are measured now, so that a device that slows down
    as a whole changes nothing.

    Full steps are timed now and then among the others, and the ratio is that of neighbours: the
    speed of a shared device drifts by more than what is measured. How far an observation is
    believed follows from its own spread and from what was known before (a Kalman filter of one
    value), so that a good profile is not spoiled by a few noisy steps.

    Args:
        band: relative distance from `rho` within which the achieved ratio counts as kept.
        doubt: standard deviation of the predicted ratios from the achieved ones, before any is
            measured.
        window: steps whose median counts.
        enough: full steps after which the achieved ratio is believed.
        every: steps after which a full step is timed although nothing has moved.
    """

    def __init__(
        self,
        *,
        band: float = 0.05,
        doubt: float = 0.1,
        window: int = 50,
        enough: int = 5,
        every: int = 200,
    ) -> None:
        for name, value in (("band", band), ("doubt", doubt)):
            arguments.number(name, value, low=0.0, high=1.0, above=True)
        self.band = band
        self.doubt = doubt
        self.enough = enough
        self.every = every
        self.delivered = 1.0
        self._steps: deque[float] = deque(maxlen=window)
        self._ratios: deque[float] = deque(maxlen=2 * enough + 1)
        self._at_reference: float | None = None
        self._since_reference = 0
        self._predicted = 1.0
        self._variance: float | None = None  # of `delivered`, once something was learned
        self._is_learned = True  # whether the present selection's ratio has been

    def selected(self, predicted: float) -> None:
        """A new selection is trained from now on, `predicted` its step time / full step time."""
        self.learn()
        self._predicted = predicted
        self._steps.clear()
        self._ratios.clear()
        self._at_reference = None
        self._since_reference = 0

    def step(self, microseconds: float) -> None:
        """A step under the present selection took so long."""
        self._steps.append(_checked_time(microseconds))
        self._since_reference += 1

    def full_step(self, microseconds: float) -> None:
        """A full step, timed right after the steps given last, took so long."""
        _checked_time(microseconds)
        if not self._steps:
            return
        if self._has_moved:
            self._ratios.clear()
        self._ratios.append(_median(list(self._steps)[-_NEIGHBOURS:]) / microseconds)
        self._at_reference = self._recent
        self._since_reference = 0
        self._is_learned = False

    @property
    def needs_full_step(self) -> bool:
        """Whether one should be timed: too few were, long ago, or the device's speed moved."""
        if not self._steps or self._since_reference < _APART:
            return False
        count = len(self._ratios)
        few = count < self.enough or (count < 2 * self.enough and self._error > _VAGUE)
        return few or self._has_moved or self._since_reference >= self.every

    @property
    def achieved(self) -> float | None:
        """Measured step time / measured full step time; None while one of them is missing."""
        return _median(self._ratios) if self._ratios else None

    @property
    def thought(self) -> float:
        """The ratio that the present selection is thought to have: measured, or else learned."""
        return self.achieved or 1.0 - self.delivered * (1.0 - self._predicted)

    @property
    def step_microseconds(self) -> float | None:
        """Of a step under the present selection; None while none is timed."""
        return _median(self._steps) if self._steps else None

    def is_off(self, rho: float) -> bool:
        """Whether it is known that too much is spent, or less than was thought to be needed."""
        if self.achieved is None or len(self._ratios) < self.enough or self._has_moved:
            return False
        expected = 1.0 - self.delivered * (1.0 - self._predicted)
        error = _SURE * self._error
        too_much = self.achieved > rho + max(self.band * rho, error)
        return too_much or self.achieved < expected - max(self.band * expected, error)

    def learn(self) -> None:
        """Take the achieved ratio of the present selection into account, once for each change."""
        if self._is_learned or self.achieved is None or self._predicted >= 1.0:
            return
        seen = (1.0 - self.achieved) / (1.0 - self._predicted)
        seen = min(max(seen, _LEAST_DELIVERED), _MOST_DELIVERED)
        saved = 1.0 - self._predicted
        before = self.doubt / saved
        known = before**2 if self._variance is None else self._variance
        weight = known / (known + (self._error / saved) ** 2)
        self.delivered += weight * (seen - self.delivered)
        self._variance = (1.0 - weight) * known + min(_OWN_ERROR / saved, before) ** 2
        self._is_learned = True

    def ask(self, rho: float, *, smallest: float = 0.0) -> float:
        """What to ask the selector for, so that `rho` is achieved; not below `smallest`."""
        check_rho(rho)
        return min(1.0, max(1.0 - (1.0 - rho) / self.delivered, smallest))

    def state(self) -> dict[str, Any]:
        """What was learned and measured, as JSON values."""
        return {
            "delivered": self.delivered,
            "variance": self._variance,
            "predicted": self._predicted,
            "steps": list(self._steps),
            "ratios": list(self._ratios),
            "at_reference": self._at_reference,
            "since_reference": self._since_reference,
            "is_learned": self._is_learned,
        }

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.delivered, self._variance = state["delivered"], state["variance"]
        self._predicted, self._is_learned = state["predicted"], state["is_learned"]
        self._steps.extend(state["steps"])
        self._ratios.extend(state["ratios"])
        self._at_reference = state["at_reference"]
        self._since_reference = state["since_reference"]

    @property
    def _error(self) -> float:
        """Standard error of the achieved ratio."""
        middle = _median(self._ratios)
        spread = 1.4826 * _median(abs(ratio - middle) for ratio in self._ratios)
        return max(1.2533 * spread / math.sqrt(len(self._ratios)), _LEAST_ERROR * middle)

    @property
    def _recent(self) -> float:
        return _median(list(self._steps)[-_RECENT:])

    @property
    def _has_moved(self) -> bool:
        """Whether the steps take longer or shorter than at the last full step."""
        if self._at_reference is None:
            return False
        return abs(self._recent - self._at_reference) > _MOVED * self._at_reference


def _median(values: Iterable[float]) -> float:
    return float(statistics.median(values))


def _checked_time(microseconds: float) -> float:
    if not (math.isfinite(microseconds) and microseconds > 0.0):
        raise ValueError(
            f"A measured step time must be finite and above 0. Received: {microseconds!r}."
        )
    return float(microseconds)

"""Means over seeds, their 95 % intervals, and verdicts in words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

_CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean and half the width of its 95 % interval; None where one value tells no spread."""

    mean: float
    half_width: float | None

    def __str__(self) -> str:
        spread = "" if self.half_width is None else f" ± {100 * self.half_width:.1f}"
        return f"{100 * self.mean:.1f}{spread}"


def interval(values: Any) -> Interval:
    """Mean over seeds of values, or of paired differences, with Student's t interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, None)
    half = stats.sem(values) * stats.t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1)
    return Interval(mean, float(half))


def verdict(found: Interval) -> str:
    """What a difference of accuracies shows, in points: "better by 0.4 to 2.1 points" ..."""
    if found.half_width is None:
        return "one seed: nothing shown"
    low = 100 * (found.mean - found.half_width)
    high = 100 * (found.mean + found.half_width)
    if low > 0:
        return f"better by {low:.1f} to {high:.1f} points"
    if high < 0:
        return f"worse by {-high:.1f} to {-low:.1f} points"
    return f"no difference shown ({low:+.1f} to {high:+.1f} points)"

"""Light steps: a deadline is met by a few steps of the cheapest mask, which is traced once.

Any mean step time between those of two masks is reached by taking turns, without tracing another
mask. Keras waits for nothing in between: both train functions are kept.
"""

from __future__ import annotations

import statistics
from collections import deque

import numpy as np

_KNOWN = 10  # light calls from which their time is believed
_RECENT = 60  # light calls that tell how long the next ones will take
_RUN = 4.0  # light steps in a row, at least: those after a change of mask are slower
_STRAY = 3.0  # times the median: more is not believed to come again


class LightSteps:
    """Decides which steps are light.

    Attributes:
        mask: trained in a light step; None: there is none that is cheaper.
        is_on: whether the next step is a light one.
        made: light steps since the selection.
        ratio: predicted step time / full step time of a light step.
    """

    def __init__(self) -> None:
        self.mask: np.ndarray | None = None
        self.is_on = False
        self.made = 0
        self.ratio = 1.0
        self._heavy_ratio = 1.0
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        self._owed = 0.0

    def offer(self, mask: np.ndarray | None, ratio: float, heavy_ratio: float) -> None:
        """After a selection.

        Args:
            mask: the cheapest one; None: there is none, or the selection is hardly dearer.
            ratio: its step time / full step time, as predicted.
            heavy_ratio: that of the selection.
        """
        known = self.mask is not None and mask is not None and np.array_equal(mask, self.mask)
        if not known:
            self._seconds.clear()
        self.mask, self.ratio, self._heavy_ratio = mask, ratio, heavy_ratio
        self.made, self._owed, self.is_on = 0, 0.0, False

    @property
    def is_known(self) -> bool:
        """Whether enough of them are measured."""
        return len(self._seconds) >= _KNOWN

    def seconds(self, heavy: float) -> float:
        """Of a light step; `heavy`: seconds of one of the selection."""
        if not self._seconds:
            return self.ratio / self._heavy_ratio * heavy
        most = _STRAY * statistics.median(self._seconds)
        return statistics.fmean(min(seconds, most) for seconds in self._seconds)

    def step(self, seconds: float, count: int, *, traced: bool) -> None:
        """`count` light steps of so many seconds were made in one call."""
        self.made += count
        if not traced:
            self._seconds.append(seconds)

    def turn(self, share: float, count: int) -> bool:
        """Whether the next call makes light steps, after one of `count` steps.

        Args:
            share: part of the steps to come that are to be light.
            count: steps in a call.
        """
        self._owed += count * (share - float(self.is_on))
        run = max(_RUN, 2.0 * count)
        self._owed = min(max(self._owed, -run), run)
        if share >= 1.0 or self._owed >= run / 2:
            self.is_on = True
        elif share <= 0.0 or self._owed <= -run / 2:
            self.is_on = False
        return self.is_on

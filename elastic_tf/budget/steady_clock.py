"""A clock that never goes back, made from one that may."""

from __future__ import annotations

from collections.abc import Callable


class SteadyClock:
    """Seconds that pass: where the clock behind it jumps back, none.

    A jump forward cannot be told from time that has passed, as it has for a device that slept.

    Args:
        clock: seconds now.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = self._shown = clock()
        self._ahead = 0.0  # of the clock behind

    def __call__(self) -> float:
        now = self._clock()
        if now < self._last:
            self._ahead += self._last - now
        self._last = now
        self._shown = max(self._shown, now + self._ahead)  # rounding can go back, too
        return self._shown

"""Full steps beside those of the training, to know the achieved ratio."""

from __future__ import annotations

import statistics

from elastic_tf.budget.ledger import Ledger
from elastic_tf.budget.lookahead import Lookahead
from elastic_tf.budget.ratio import RatioControl

_TIMED = 3  # steps that a full step is compared with: those right before it


class FullSteps:
    """Times a full step now and then, of which nothing stays behind."""

    def __init__(
        self, ratio: RatioControl, ledger: Ledger, lookahead: Lookahead, share: float
    ) -> None:
        self.share = share  # of the training time that this and early selections may take
        self.spent = 0.0  # seconds of it
        self._ratio, self._ledger, self._lookahead = ratio, ledger, lookahead
        self._timed_at = 0.0
        self._is_timing = False

    def step_was_made(self, *, is_full: bool) -> None:
        """Time a full step where that is due; `is_full`: the training's own are full ones."""
        lookahead, ledger = self._lookahead, self._ledger
        if self._is_timing and not lookahead.is_active:
            self._is_timing = False
            if len(lookahead.seconds) > _TIMED:
                started = ledger.elapsed
                full = lookahead.full_step_seconds()
                self._timed_at = ledger.elapsed
                self.spent += self._timed_at - started
                if full:
                    self._ratio.ratios.append(statistics.median(lookahead.seconds[-_TIMED:]) / full)
        elif not (is_full or lookahead.is_active) and self._is_due():
            self._is_timing = True
            lookahead.ask(batches=_TIMED + 1)

    def can_afford(self, seconds: float) -> bool:
        """Whether so much more stays within the share of the training time."""
        ledger = self._ledger
        left = (ledger.steps_left or 0) * (ledger.step_seconds or 0.0)
        return self.spent + seconds <= self.share * (ledger.elapsed + left)

    def _is_due(self) -> bool:
        ledger = self._ledger
        if not ledger.is_settled:
            return False
        cost = 2.0 * (ledger.full_seconds or 0.0)
        if not self._lookahead.is_traced:
            cost += (ledger.retrace or 0.0) + (ledger.full_seconds or 0.0)
        since = ledger.elapsed - self._timed_at
        is_waited_for = since * self.share >= cost or not self._ratio.is_enough
        return is_waited_for and self.can_afford(cost)

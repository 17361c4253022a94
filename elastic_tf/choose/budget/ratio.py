"""Ratio control: full steps timed beside those of the training, and what is learned of them."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Any

from elastic_tf import stack
from elastic_tf.choose.budget.ledger import Ledger, finished
from elastic_tf.choose.budget.lookahead import Lookahead, of_batches
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.state import LastUsed
from elastic_tf.train.engine.tracing import kept

_TIMED = 3  # steps that a full step is compared with: those right before it
_ENOUGH = 5  # ratios from which their spread is told: the fewest with quartiles of their own
_TOLD = 3  # ratios: the fewest whose median one disturbed step does not decide
_BAND = 0.05  # of `rho`: within this the achieved ratio counts as kept
_SURE = 2.0  # standard errors: 95 % of a normal distribution


class RatioControl:
    """What share of a profile's predicted savings the device delivers.

    achieved = 1 - delivered * (1 - predicted), exact for a full step. `delivered` is 1 until the
    achieved ratio is measured outside the band and surely so; then it is solved for.

    Both times of an achieved ratio are measured one right after the other: the speed of a shared
    device drifts by more than what is measured.
    `share` is that of `Control`.
    """

    def __init__(
        self, model: ElasticMixin, ledger: Ledger, lookahead: Lookahead, share: float
    ) -> None:
        self.share, self.spent = share, 0.0  # seconds
        self.delivered = 1.0
        self.predicted = 1.0
        # the median of the last ones follows a load that comes and goes
        self.ratios: deque[float] = deque(maxlen=2 * _ENOUGH + 1)
        self._model, self._ledger, self._lookahead = model, ledger, lookahead
        self._functions = LastUsed(1)  # of the full step
        self._timed_at = 0.0
        self._is_timing = False

    @property
    def achieved(self) -> float | None:
        """Measured step time / measured full step time; None while there is none."""
        return float(statistics.median(self.ratios)) if self.ratios else None

    def selected(self, predicted: float) -> None:
        """A plan of that predicted ratio is trained from now on."""
        self.predicted = predicted
        self.ratios.clear()

    def is_off(self, rho: float) -> bool:
        """Whether steps surely take more than `rho`, or less than was thought to be needed."""
        if self.achieved is None or len(self.ratios) < _ENOUGH:
            return False
        spread = statistics.median(abs(ratio - self.achieved) for ratio in self.ratios)
        # of a median of normal values: 1.2533 sigma / sqrt(n), sigma = 1.4826 * that spread
        error = _SURE * 1.2533 * 1.4826 * spread / math.sqrt(len(self.ratios))
        off = max(_BAND * rho, error)
        expected = 1.0 - self.delivered * (1.0 - self.predicted)
        return self.achieved > rho + off or self.achieved < expected - off

    def learn(self) -> None:
        """Believe the achieved ratio of the present plan."""
        if self.achieved is not None and self.predicted < 1.0:
            self.delivered = max((1.0 - self.achieved) / (1.0 - self.predicted), 1e-6)

    def is_told(self) -> bool:
        """Whether the present plan says what is delivered; it is learned then."""
        if len(self.ratios) < _TOLD or self.predicted == 1.0:
            return False
        self.learn()
        return True

    def ask(self, rho: float) -> float:
        """What to ask the selector for, so that `rho` is achieved: 1 - (1 - rho) / delivered."""
        return 1.0 - (1.0 - rho) / self.delivered

    def state(self) -> dict[str, Any]:
        """What was learned and measured, as JSON values."""
        return {"delivered": self.delivered, "ratios": list(self.ratios), "spent": self.spent}

    def go_on(self, state: dict[str, Any]) -> None:
        """Go on from `state`, after `selected`."""
        self.delivered, self.spent = state["delivered"], state["spent"]
        self.ratios.extend(state["ratios"])

    def step_was_made(self, *, is_full: bool) -> None:
        """Time a full step where that is due; `is_full`: the training's own are full ones."""
        lookahead, ledger = self._lookahead, self._ledger
        if self._is_timing and not lookahead.is_active:
            self._is_timing = False
            if len(lookahead.seconds) > _TIMED:
                started = ledger.elapsed
                full = self._full_step_seconds()
                self._timed_at = ledger.elapsed
                self.spent += self._timed_at - started
                if full:
                    self.ratios.append(statistics.median(lookahead.seconds[-_TIMED:]) / full)
        elif not (is_full or lookahead.is_active) and self._is_due():
            self._is_timing = True
            lookahead.ask(batches=_TIMED + 1)

    def can_afford(self, seconds: float) -> bool:
        """Whether so much more stays within the share of the training time."""
        ledger = self._ledger
        left = (ledger.steps_left or 0) * ledger.step_seconds
        return self.spent + seconds <= self.share * (ledger.elapsed + left)

    def _is_due(self) -> bool:
        ledger = self._ledger
        if not ledger.is_settled:
            return False
        cost = 2.0 * ledger.full_seconds
        if not len(self._functions):
            cost += (ledger.retrace or 0.0) + ledger.full_seconds
        since = ledger.elapsed - self._timed_at
        is_waited_for = since * self.share >= cost or len(self.ratios) < _ENOUGH
        return is_waited_for and self.can_afford(cost)

    def _full_step_seconds(self) -> float | None:
        """Time of one step of all tensors; None where no batch could be drawn.

        Its function is kept apart from the training's: its dropout has counters of its own.
        """
        if self._lookahead.batch is None:
            return None
        (batch, spec), count = self._lookahead.batch, stack.execution(self._model)
        model, state = self._model, self._model._elastic
        is_traced = bool(len(self._functions))
        held = {name: getattr(state, name) for name in ("plan", "functions")}
        in_use = model.train_function, state.traceable
        state.functions = self._functions
        try:
            model.set_plan(None)
            graph = model.train_tf_function.get_concrete_function(of_batches([batch], spec)).graph
            with kept(model, [graph]):
                # what is kept shares its memory with the variables: the first update copies it
                for _ in range(2 if is_traced else 3):
                    few = of_batches([batch] * count, spec)
                    started = self._ledger.elapsed
                    finished(model.train_function(few))
                    seconds = (self._ledger.elapsed - started) / count
            return seconds
        finally:
            vars(state).update(held)
            model.train_function, state.traceable = in_use

"""Ratio control: steps and full steps timed on `fit`'s own batches, and what is learned of them.

Batches are drawn ahead of their steps and handed to these afterwards. So a probe, a profile and a
full step can use `fit`'s own data: a second iterator would change the order of a shuffled dataset.
And what a step takes can be timed without waiting for data, for Keras 2.15 draws a batch inside its
train function.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.choose.budget.ledger import Ledger, finished
from elastic_tf.choose.probe import size_of
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.state import LastUsed
from elastic_tf.train.engine.tracing import kept

_TIMED = 3  # steps that a full step is compared with: those right before it
_ENOUGH = 5  # ratios from which their spread is told: the fewest with quartiles of their own
_BAND = 0.05  # of `rho`: within this the achieved ratio counts as kept
_SURE = 2.0  # standard errors: 95 % of a normal distribution


class Lookahead:
    """Stands in for `model.train_function` while it is needed; same batches, same results."""

    def __init__(self, model: ElasticMixin, ledger: Ledger) -> None:
        self.seconds: list[float] = []  # of a step in each call on batches drawn, since `ask`
        self.batch: tuple[Any, Any] | None = None  # that was drawn first; its iterator's spec
        self._model, self._ledger = model, ledger
        self._function: Any = None
        self._asked: Any = None
        self._drawn: deque[Any] = deque()

    @property
    def is_active(self) -> bool:
        """Whether batches are asked for, or not yet trained on."""
        return self._asked is not None or bool(self._drawn)

    def ask(
        self, then: Callable[[list[Any]], None] | None = None, *, batches: int = 1, samples: int = 0
    ) -> None:
        """Draw so many batches, and samples, at the next call; `then` is called before it."""
        self._asked = then, batches, samples
        self.seconds.clear()

    def attach(self) -> None:
        """Take part in the next call, if there is something to do."""
        if self.is_active and self._model.train_function is not self:
            self._model.train_function = self.before(self._model.train_function)
            self._model._elastic.lookahead = self

    def before(self, function: Any) -> Lookahead:
        """Stand in for another train function, of a plan that was set in between."""
        self._function = function
        return self

    def __call__(self, iterator: Any) -> Any:
        """Called by Keras as the train function."""
        model = self._model
        model.train_function, model._elastic.lookahead = self._function, None
        if self._asked is not None:
            self._look(iterator)
        function = model.train_function  # another one where `then` has set a plan
        if not self._drawn:
            return function(iterator)
        count = stack.execution(model)
        self._draw(iterator, count)
        taken = [self._drawn.popleft() for _ in range(min(count, len(self._drawn)))]
        few = of_batches(taken, iterator.element_spec)
        started = self._ledger.elapsed
        logs = finished(function(few))
        self.seconds.append((self._ledger.elapsed - started) / len(taken))
        return logs

    def _look(self, iterator: Any) -> None:
        """Draw what is asked for, and show it."""
        (then, batches, samples), self._asked = self._asked, None
        self._draw(iterator, batches, samples)
        if not self._drawn:
            return
        self.batch = self._drawn[0], iterator.element_spec
        if then is not None:
            rows = self._model._elastic.rows
            then([rows.as_samples(one) if rows else one for one in self._drawn])

    def _draw(self, iterator: Any, batches: int, samples: int = 0) -> None:
        while len(self._drawn) < batches or sum(map(size_of, self._drawn)) < samples:
            batch = next(iterator, None)
            if batch is None:
                break
            self._drawn.append(batch)


class RatioControl:
    """What share of a profile's predicted savings the device delivers.

    achieved = 1 - delivered * (1 - predicted), exact for a full step. `delivered` is 1 until the
    achieved ratio is measured outside the band and surely so; then it is solved for. Both of its
    times are measured one right after the other: the speed of a shared device drifts by more.
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
        """Believe the achieved ratio of the present plan, where one is measured."""
        if self.achieved is not None and self.predicted != 1.0:
            self.delivered = max((1.0 - self.achieved) / (1.0 - self.predicted), 1e-6)

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

    def _full_step_seconds(self) -> float:
        """Time of one step of all tensors, on the first batch that was drawn.

        Its function is kept apart from the training's: its dropout has counters of its own.
        """
        assert self._lookahead.batch is not None
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


def of_batches(batches: list[Any], spec: Any) -> tf.data.Iterator:
    """An iterator of these batches, of the type of the one that they were drawn from."""
    parts = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    dataset = functools.reduce(lambda one, two: one.concatenate(two), parts)
    # from_tensors fixes the batch size: under another type the function would be traced anew
    variant = tf.data.experimental.to_variant(dataset)
    return iter(tf.data.experimental.from_variant(variant, spec))

"""What an elastic model remembers: its plan, the `fit` it is in, and its train functions.

There is a train function for each plan, of which the last few are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.plan import Plan
from elastic_tf.train.engine.prefix import Forward
from elastic_tf.train.engine.rows import RowTraining


class Step(NamedTuple):
    """One forward pass: the unpacked batch, the prediction and the total loss."""

    x: Any
    y: Any
    sample_weight: Any
    y_pred: Any
    loss: tf.Tensor


class State:
    """A plain object, so that Keras does not track it."""

    def __init__(self) -> None:
        self.plan: Plan | None = None  # None: everything exact, of a model not yet built too
        self.tensors: list[tf.Variable] | None = None  # that plans are for, in forward order
        self.variables: list[tf.Variable] = []  # the same in Keras's order
        self.tracing = 0.0  # seconds that tracing the forward pass takes
        self.steps_per_execution = 1  # as compiled: Keras lowers its own in the last steps
        self.functions = LastUsed()
        self.traceable: Any = None  # the `tf.function` in the train function in use
        self.keep: float | None = None  # share of the activations; None: as Keras has it
        self.statistics = "batch"  # of batch normalisations in training; or "stored"
        # of this `fit`
        self.fit_state: dict[str, Any] = {}  # what callbacks remember, JSON values by name
        self.callback: Any = None  # that chooses the plan
        self.ledger: Any = None  # its clock
        self.forward: Forward | None = None  # traced right before it
        self.rows: RowTraining | None = None  # where it trains on samples that have numbers
        self.fit_started: float | None = None  # seconds of time.perf_counter
        self.data: Any = None  # the `stack.RunningFit`
        self.lookahead: Any = None  # that stands in for the train function at the next call
        self.callbacks: Any = None  # that it was given
        # called when it has ended by itself: what changes weights first, what keeps them last
        self.endings: list[Callable[[], None]] = []
        self.leave: Callable[[], None] | None = None  # called when it ends, in whatever way

    @contextlib.contextmanager
    def planned(self, plan: Plan | None) -> Iterator[None]:
        """Trace under another plan than the model's."""
        own, self.plan = self.plan, plan
        try:
            yield
        finally:
            self.plan = own


class LastUsed(dict[Hashable, Any]):
    """The values that were used last, `size` of them, as train functions by plan."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.size = size

    def get(self, key: Hashable, default: Any = None) -> Any:
        """The value of that key."""
        if key in self:
            self[key] = self.pop(key)
        return super().get(key, default)

    def put(self, key: Hashable, value: Any) -> None:
        """Keep a value under that key, and drop the one whose last use is longest ago."""
        self.pop(key, None)
        self[key] = value
        if len(self) > self.size:
            del self[next(iter(self))]


def switch(model: Any, make: Callable[..., Any], force: bool = False) -> Any:
    """Let a compiled model train by the function of its plan, made unless it is kept; returns it.

    `make` is Keras's own `make_train_function` of it. With `force` none that is kept will do.
    """
    state = model._elastic
    if force:
        state.functions.clear()
    trained = model._trained(state.plan)
    cache = None if state.rows is None else state.rows.kept(trained)
    key = (state.plan and state.plan.traced, cache)
    kept = state.functions.get(key)
    if kept is None:
        model._build_optimizer()
        function, state.traceable = stack.made_train_function(
            model, make, state.steps_per_execution
        )
        if state.rows is not None and cache is not None:
            function = state.rows.or_whole(function)
        kept = function, state.traceable
        state.functions.put(key, kept)
    model.train_function, state.traceable = kept
    if state.data is None:
        state.data = stack.running_fit(model)
    if state.lookahead is not None:  # it has drawn batches that come before the next one
        model.train_function = state.lookahead.before(model.train_function)
    return model.train_function


def judge_next(model: Any, iterator: Any) -> Any:
    """In the place of a step: the logs of the next batch, which is not trained on."""
    data, rows = next(iterator), model._elastic.rows
    x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(rows.as_samples(data) if rows else data)
    return judged(model, x, y, weight, model(x, training=False))


def judged(model: Any, x: Any, y: Any, weight: Any, y_pred: Any) -> Any:
    """The logs of what was predicted."""
    loss = stack.computed_loss(model, x, y, y_pred, weight, training=False)
    return model.finish(Step(x, y, weight, y_pred, loss))

"""Times of the steps that `fit` makes, and of a full step now and then, without what is not a step.

Keras 2.15 draws the next batch inside its train function, so that a clock around the function also
counts waiting for data. Here the batch of some steps is drawn first and handed to the very same
function through an iterator of that one batch: same trace, same results, and the waiting is known.
From the other steps the usual waiting is taken off.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.engine.snapshot import kept
from elastic_tf.engine.step_functions import TrainFunctions

_WARM_UP = 2  # calls of a new function that trace, allocate and fill caches
_SURELY = 8  # calls after these that are timed at any cost
_RECENT = 20  # calls whose waiting tells the usual one
_SHARE = 0.01  # of the training time that drawing batches apart may take afterwards


class StepTimer:
    """Stands in for `model.train_function` and times its calls.

    Where the batches do not come from one `tf.data` iterator (several replicas), waiting for data
    is part of the time.

    Attributes:
        seconds: of the last call, for each of its steps; None if it was not timed.
        waited: seconds spent waiting for data before it; None where not measured.
        traced: whether the last call was the first one of its function.
        batch: the largest batch seen, for a full step; None where there is none.
    """

    def __init__(self, model: ElasticMixin, clock: Callable[[], float]) -> None:
        self.model = model
        self.seconds: float | None = None
        self.waited: float | None = None
        self.traced = False
        self.batch: Any = None
        self._clock = clock
        self._function: Any = None
        self._calls: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of each function
        self._started = clock()
        self._overhead = 0.0
        self._size = 0
        self._waits: deque[float] = deque(maxlen=_RECENT)

    def attach(self) -> None:
        """Time the model's train function from now on; no change if it is timed already."""
        function = self.model.train_function
        if function is None or function is self._timed:
            return
        self._function = function
        self.model.train_function = self._timed

    def detach(self) -> None:
        """Give the model its train function back."""
        if self._function is not None and self.model.train_function is self._timed:
            self.model.train_function = self._function
        self._function = None

    @property
    def _timed(self) -> Callable[[Any], Any]:
        # one bound method: `is` must tell it
        return self.__dict__.setdefault("_bound", self._call)

    def _call(self, iterator: Any) -> Any:
        calls = self._calls[self._function] = self._calls.get(self._function, 0) + 1
        self.traced = calls == 1 and self._is_new()
        self.seconds = self.waited = None
        if calls <= _WARM_UP:
            return self._function(iterator)
        count = steps_of(self.model)
        if not isinstance(iterator, tf.data.Iterator):
            return self._run(iterator, count)
        now = self._clock()
        if calls > _WARM_UP + _SURELY and self._overhead > _SHARE * (now - self._started):
            logs = self._run(iterator, count)
            self.seconds = self._without_waiting(self.seconds or 0.0)
            return logs
        batches = [next(iterator) for _ in range(count)]
        drawn = self._clock()
        few = of_batches(batches, iterator.element_spec)
        self._overhead += self._clock() - drawn
        self.waited = (drawn - now) / count
        self._waits.append(self.waited)
        size = int(tf.nest.flatten(batches[0])[0].shape[0] or 0)
        if size >= self._size:  # the last batch of an epoch may be smaller
            self.batch, self._size = (batches[0], iterator.element_spec), size
        return self._run(few, count)

    def _run(self, iterator: Any, count: int) -> Any:
        started = self._clock()
        logs = finished(self._function(iterator))
        self.seconds = (self._clock() - started) / count
        return logs

    def _without_waiting(self, seconds: float) -> float | None:
        usual = statistics.median(self._waits)
        return seconds - usual if usual < seconds else None

    def _is_new(self) -> bool:
        traceable = self.model.train_tf_function
        return traceable is not None and not traceable.experimental_get_tracing_count()


class FullStep:
    """A training step of all tensors, run beside the training without a trace of it.

    It is the function that Keras would train with if everything were selected, kept apart from
    those of the training: its dropout has counters of its own.
    """

    def __init__(self, model: ElasticMixin, clock: Callable[[], float]) -> None:
        self.model = model
        self.is_traced = False
        self._clock = clock
        self._functions = TrainFunctions(1)

    def seconds(self, batch: Any, spec: Any) -> float:
        """Time of one full step; all that it changes is put back, bit for bit.

        Args:
            batch: what the training's iterator yields.
            spec: that iterator's `element_spec`.
        """
        count = steps_of(self.model)
        with self._selected() as (function, traceable):

            def run() -> float:
                few = of_batches([batch] * count, spec)
                started = self._clock()
                finished(function(few))
                return (self._clock() - started) / count

            with kept(self.model, _graph(traceable, of_batches([batch], spec))):
                # what is kept shares its memory with the variables: the first update copies it
                for _ in range(1 if self.is_traced else _WARM_UP):
                    run()
                self.is_traced = True
                return run()

    @contextlib.contextmanager
    def _selected(self) -> Iterator[tuple[Any, Any]]:
        """The full step's function, made under a full mask; the model is as it was afterwards."""
        model, state = self.model, self.model._elastic
        plan, averaged, functions = state.plan, set(state.averaged), state.functions
        in_use = model.train_function, model.train_tf_function
        state.functions = self._functions
        accumulation, state.accumulation = state.accumulation, None  # with its update, at once
        try:
            model.set_plan(None)
            yield model.train_function, model.train_tf_function
        finally:
            state.plan, state.functions = plan, functions
            state.accumulation = accumulation
            model.train_function, model.train_tf_function = in_use
            state.averaged.clear()
            state.averaged.update(averaged)


def of_batches(batches: list[Any], spec: Any) -> tf.data.Iterator:
    """An iterator of these batches, of the type of the one that they were drawn from."""
    parts = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    dataset = functools.reduce(lambda one, two: one.concatenate(two), parts)
    # from_tensors fixes the batch size: under another type the function would be traced anew
    variant = tf.data.experimental.to_variant(dataset)
    return iter(tf.data.experimental.from_variant(variant, spec))


def _graph(traceable: Any, batches: tf.data.Iterator) -> Iterator[Any]:
    """The graph that a function runs for such batches, traced when it is asked for."""
    yield traceable.get_concrete_function(batches).graph


def finished(logs: Any) -> Any:
    """`logs`, once the device has computed them."""
    for value in tf.nest.flatten(logs):
        if tf.is_tensor(value):
            value.numpy()
    return logs


def steps_of(model: ElasticMixin) -> int:
    """Training steps in one call of the train function."""
    steps = model._steps_per_execution
    return 1 if steps is None else int(steps.numpy())

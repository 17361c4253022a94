"""The training's next batches, drawn before their steps and handed to these steps afterwards.

So a probe, a profile and a full step can use `fit`'s own data: a second iterator would change the
order of a shuffled dataset. And what a step takes can be timed without waiting for data, for Keras
2.15 draws a batch inside its train function.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.choose.budget.ledger import Ledger, finished
from elastic_tf.choose.probe import size_of
from elastic_tf.train.engine.mixin import ElasticMixin


class Lookahead:
    """Stands in for `model.train_function` while it is needed; same batches, same results."""

    def __init__(self, model: ElasticMixin, ledger: Ledger) -> None:
        # Of a step in each call on batches drawn ahead that are as large as `batch`, since `ask`.
        self.seconds: list[float] = []
        self.batch: tuple[Any, Any] | None = None  # the largest drawn first; its iterator's spec
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
        seconds = (self._ledger.elapsed - started) / len(taken)
        if self.batch is None or all(shapes(one) == shapes(self.batch[0]) for one in taken):
            self.seconds.append(seconds)
        return logs

    def _look(self, iterator: Any) -> None:
        """Draw what is asked for, and show it."""
        (then, batches, samples), self._asked = self._asked, None
        self._draw(iterator, batches, samples)
        if not self._drawn:
            return
        first = self._drawn[0]  # the last batch of an epoch may be smaller
        if self.batch is None or size_of(first) >= size_of(self.batch[0]):
            self.batch = first, iterator.element_spec
        if then is not None:
            rows = self._model._elastic.rows
            then([rows.as_samples(one) if rows else one for one in self._drawn])

    def _draw(self, iterator: Any, batches: int, samples: int = 0) -> None:
        while len(self._drawn) < batches or sum(map(size_of, self._drawn)) < samples:
            batch = next(iterator, None)
            if batch is None:
                break
            self._drawn.append(batch)


def of_batches(batches: list[Any], spec: Any) -> tf.data.Iterator:
    """An iterator of these batches, of the type of the one that they were drawn from."""
    parts = [tf.data.Dataset.from_tensors(batch) for batch in batches]
    dataset = functools.reduce(lambda one, two: one.concatenate(two), parts)
    # from_tensors fixes the batch size: under another type the function would be traced anew
    variant = tf.data.experimental.to_variant(dataset)
    return iter(tf.data.experimental.from_variant(variant, spec))


def shapes(batch: Any) -> list[tf.TensorShape]:
    """Of all parts of a batch."""
    return [part.shape for part in tf.nest.flatten(batch)]

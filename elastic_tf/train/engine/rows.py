"""Training on samples that have numbers: what never changes of them is computed once."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.plan import Plan
from elastic_tf.stack import KERAS
from elastic_tf.train.engine.prefix import Forward, NotCacheable, PrefixCache
from elastic_tf.train.samples import Rows, Samples


class RowTraining:
    """One `fit` of a model on `Samples`, whose batches are numbers of rows.

    What is kept of them belongs to the weights that it was computed with. They change under a plan
    that trains more, and by whoever sets the weights of a model. `kept` is the one place that asks.
    In a `fit` that is watched, callbacks of the user's own may set them between steps.
    """

    def __init__(
        self, model: tf.keras.Model, samples: Samples, *, is_watched: bool = False
    ) -> None:
        self.samples = samples
        self._traced, model._elastic.forward = model._elastic.forward, None
        is_python = not model.run_eagerly and not model.jit_compile  # can be called by a step
        # whether anything may be computed in advance in this `fit`
        self.can_cache = bool(samples.memory) and is_python
        self._model, self._is_watched = model, is_watched
        self._begins, self._left = False, 1  # an epoch; epochs to come, this one included
        self._cache: PrefixCache | None = None
        self._beside: PrefixCache | None = None  # of other samples
        self._whole: dict[str, Any] = {}  # functions of inputs, traced

    @functools.cached_property
    def _forward(self) -> Forward:
        inputs = self.samples.inputs(min(self.samples.cache_batch, self.samples.rows))
        forward = self._traced
        if forward is None or not forward.takes(inputs):
            forward = Forward(self._model, inputs)
        if not forward.cut([]).tensors:
            raise NotCacheable(
                "the model draws at random, or looks words up, at its very input. Where time is "
                "short, draw views once, et.Samples(x, y, augment=function, views=2), or give "
                "token ids"
            )
        return forward

    @property
    def traced(self) -> Forward | None:
        """The forward pass of what is kept, if it is traced."""
        return self.__dict__.get("_forward")

    def kept(self, trained: Sequence[tf.Variable] = ()) -> PrefixCache | None:
        """What steps that train these variables alone can take; dropped if the weights changed."""
        if self._cache is not None and not self._cache.is_current():
            self.close()
        cache = self._cache
        return None if cache is None or cache.cut.depends_on(trained).any() else cache

    def cache(self, trained: Sequence[tf.Variable], epochs: int) -> None:
        """Compute once what does not change while only these variables are trained.

        Where what was computed before can still be used, it is where this begins. Nothing is
        computed that no two of the epochs would take.
        """
        if not self.keeps(epochs):
            return
        before = self.kept(trained)
        try:
            forward = self._forward  # traced when it is needed first
            cut = forward.cut(trained)
            if before is None:
                self.close()  # two of them may not fit
            elif [*map(id, before.cut.tensors)] == [*map(id, cut.tensors)]:
                return
            cache = PrefixCache(forward, self.samples, cut, before) if cut.tensors else None
            self.close()
            self._cache = cache
        except NotCacheable as reason:
            self._cache_nothing(reason)

    def keeps(self, epochs: int) -> bool:
        """Whether so many epochs take what is computed once: two of them some of it, at least."""
        return self.can_cache and self.samples.views < epochs

    def fill_cost(self, epochs: int) -> float:
        """Passes that compute the activations / passes that take them in so many epochs."""
        if not self.keeps(epochs):
            return 1.0
        try:
            self._forward  # noqa: B018  which tells
        except NotCacheable as reason:
            self._cache_nothing(reason)
            return 1.0
        return self.samples.views / epochs

    def held(self, tensors: Sequence[tf.Variable]) -> np.ndarray:
        """True for the tensors that the cached activations depend on; bool, shape (N,)."""
        cache = self.kept()
        return np.zeros(len(tensors), bool) if cache is None else cache.cut.depends_on(tensors)

    def held_bytes(self, plan: Plan) -> int:
        """Bytes of memory of the samples, and of what a plan leaves to be kept of them."""
        samples = self.samples
        held = sum(int(tf.size(x)) * x.dtype.size for x in tf.nest.flatten(samples.arrays))
        if not self.can_cache:
            return held
        try:
            cut = self._forward.cut(self._model._trained(plan))
        except NotCacheable:
            return held
        kept = sum(one.shape[1:].num_elements() * one.dtype.size for one in cut.tensors)
        return held + min(kept * samples.rows, samples.memory)

    def onward(
        self, function: Callable[[Any], Any], name: str, samples: Samples
    ) -> Iterator[list[np.ndarray]]:
        """As of the `PrefixCache`, of samples trained on or beside; `NotCacheable` if not kept."""
        for cache in (self.kept(), self._beside):
            if cache is not None and cache.samples is samples:
                yield from cache.onward(function, name)
                return
        raise NotCacheable("no activations of these samples are kept")

    def whole(self, function: Callable[[Any], Any], name: str) -> Any:
        """A function of a batch of inputs, traced once under its name, where nothing is kept."""
        return self._whole.setdefault(name, tf.function(function, reduce_retracing=True))

    def beside(self, samples: Samples) -> None:
        """Keep of some other samples, as to judge by, what is kept of those trained on.

        Nothing is where their inputs have other types.
        """
        cache = self.kept()
        types = [
            [part.dtype for part in tf.nest.flatten(one.arrays[0])]
            for one in (samples, self.samples)
        ]
        if cache is not None and types[0] == types[1]:
            self._beside = cache.beside(samples)

    def step(
        self, train_step: Callable[[Any], Any], data: Any, trained: Sequence[tf.Variable]
    ) -> Any:
        """Trace a `train_step` on rows; on other data as it is.

        Raises:
            NotCacheable: it must be traced anew, for nothing is cached from now on.
        """
        cache = self.kept(trained)
        if cache is None or not isinstance(data, Rows):
            return train_step(self.as_samples(data))
        try:
            return cache.step(train_step, data.numbers)
        except NotCacheable as reason:
            self._cache_nothing(reason)
            raise

    def as_samples(self, data: Any) -> Any:
        """A batch of `fit`, with samples in the place of the numbers of their rows."""
        return self.samples.take(data.numbers) if isinstance(data, Rows) else data

    def look(self, epochs: int | None = None) -> None:
        """Look at the weights before the next step; so many epochs are to come, if that is told."""
        self._begins, self._left = True, self._left if epochs is None else epochs

    def or_whole(self, train_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A train function that takes cached activations; another one where it cannot.

        It looks at the weights once an epoch, and before each step where callbacks may set them.
        What has changed at the beginning of an epoch is computed anew, if that pays off.
        """

        def function(iterator: Any) -> Any:
            model, begins, self._begins = self._model, self._begins, False
            if (begins or self._is_watched) and self.kept() is None:
                model.make_train_function()
                if begins:
                    model.cache_prefix(self._left)
                return model.train_function(iterator)
            try:
                return train_function(iterator)
            except NotCacheable:  # told while it is traced: nothing was drawn
                return model.make_train_function(force=True)(iterator)

        return function

    def close(self) -> None:
        """Forget what was computed."""
        for cache in (self._cache, self._beside):
            if cache is not None:
                cache.close()
        self._cache = self._beside = None

    def _cache_nothing(self, reason: NotCacheable) -> None:
        """Run every step whole from now on, and say why."""
        self.close()
        self.can_cache = False
        warnings.warn(f"Every step runs the whole forward pass: {reason}.", stacklevel=2)


def enter(model: Any, given: dict[str, Any]) -> None:
    """Begin a `fit` of an elastic model: where its arguments have `Samples`, they get rows."""
    samples = given.get("x")
    if not isinstance(samples, Samples):
        return
    weights = given.pop("class_weight", None)
    if weights:
        samples = samples.weighted(weights)
    if found := samples.not_finite:
        warnings.warn(
            f"Inputs should be finite, or the loss is NaN. Received: {found}. Leave these out.",
            stacklevel=3,
        )
    ends, callbacks = given.get("epochs", 1), given["callbacks"]
    is_list = isinstance(callbacks, tf.keras.callbacks.CallbackList)  # of a user's own
    state, own = model._elastic, type(model).train_step.__get__(model)
    is_watched = is_list or any(map(_acts_between_steps, callbacks))
    rows = state.rows = RowTraining(model, samples, is_watched=is_watched)
    if not is_list:

        def look(epoch: int, logs: Any) -> None:
            rows.look(ends - epoch)

        callbacks.append(tf.keras.callbacks.LambdaCallback(on_epoch_begin=look))
    # not a variable of the model's: Keras does not track it
    model.__dict__["train_step"] = lambda data: rows.step(own, data, model._trained(state.plan))
    state.functions.clear()
    model.cache_prefix(ends - given.get("initial_epoch", 0))
    given.update(x=samples.row_batches(), shuffle=False)


def _acts_between_steps(callback: Any) -> bool:
    """Whether a callback does something there that is neither Keras's nor ours."""
    names = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
    methods = [getattr(callback, name, None) for name in names]
    homes = {getattr(method, "__module__", "").partition(".")[0] for method in methods if method}
    return not homes <= {KERAS, __package__.partition(".")[0]}


def leave(model: Any) -> None:
    """End a `fit`: forget samples and what was computed of them, and the steps that take them."""
    state = model._elastic
    if state.rows is not None:
        state.rows.close()
        state.rows = None
        state.functions.clear()
        model.__dict__.pop("train_step", None)

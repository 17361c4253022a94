"""Training on samples that have numbers: what never changes of them is computed once."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.engine.prefix import Forward, NotCacheable, PrefixCache
from elastic_tf.inputs.samples import Rows, Samples
from elastic_tf.plan import Plan
from elastic_tf.stack import KERAS, build_by


class RowTraining:
    """One `fit` on `Samples`, whose batches are numbers of rows.

    Args:
        model: the model that is trained.
        samples: what it is trained on.
        is_watched: whether callbacks of the user's own may change weights between steps.

    Attributes:
        samples: the same.
        can_cache: whether anything may be computed in advance in this `fit`.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        samples: Samples,
        *,
        is_watched: bool = False,
    ) -> None:
        self.samples = samples
        replicas = model.distribute_strategy.num_replicas_in_sync
        is_python = not model.run_eagerly and not model.jit_compile  # can be called by a step
        self.can_cache = bool(samples.memory) and is_python and replicas == 1
        self._model, self._is_watched = model, is_watched
        self._begins, self._left = False, 1  # an epoch; epochs to come, this one included
        self._forward: Forward | None = None
        self._cache: PrefixCache | None = None
        self._seconds: float | None = None  # of a row in the forward pass that fills a cache

    def fill(self, epochs: int) -> float:
        """Passes that compute the activations / passes that take them in so many epochs."""
        return min(self.samples.views / max(epochs, 1), 1.0)

    def fill_cost(self, epochs: int, step: float) -> float:
        """The same, each pass that computes them at what it takes here.

        Args:
            epochs: that take the activations.
            step: seconds of the forward pass of a step; larger batches often take less for a row.
        """
        share = self.fill(epochs)
        if share == 1.0:
            return share
        if self._seconds is None:
            try:
                self._seconds = self._passed().seconds_per_row()
            except NotCacheable as reason:
                self.cache_nothing(reason)
                return 1.0
        return min(self._seconds * self.samples.batch_size / step, 1.0) * share

    def _passed(self) -> Forward:
        """The forward pass, traced when it is needed first."""
        if self._forward is None:
            self._forward = Forward(
                self._model, self.samples, min(self.samples.cache_batch, self.samples.rows)
            )
        return self._forward

    def cache(self, trained: Sequence[tf.Variable], epochs: int) -> None:
        """Compute once what does not change while only these variables are trained.

        Where what was computed before can still be used, it is where this begins. Nothing is
        computed that no two of the epochs would take.
        """
        if not self.can_cache or self.fill(epochs) == 1.0:
            return
        before = self.cache_for(trained)
        try:
            forward = self._passed()
            cut = forward.cut(trained)
            if before is not None and before.cut.is_same(cut):
                return
            if before is None:
                self.close()  # two of them may not fit
            cache = PrefixCache(forward, self.samples, cut, before) if cut.tensors else None
            self.close()
            self._cache = cache
        except NotCacheable as reason:
            self.cache_nothing(reason)

    def held_bytes(self, plan: Plan) -> int:
        """Bytes of memory of the samples, and of what a plan leaves to be kept of them."""
        samples = self.samples
        held = sum(int(tf.size(x)) * x.dtype.size for x in tf.nest.flatten(samples.arrays))
        if not self.can_cache:
            return held
        try:
            cut = self._passed().cut(self._model._trained(plan))
        except NotCacheable:
            return held
        halved = {tf.float32: 2} if samples.half else {}
        kept = sum(
            one.shape[1:].num_elements() * halved.get(one.dtype, one.dtype.size)
            for one in cut.tensors
        )
        return held + min(kept * samples.rows, samples.memory)

    def cache_nothing(self, reason: NotCacheable) -> None:
        """Run every step whole from now on, and say why."""
        self.close()
        self.can_cache = False
        warnings.warn(f"Every step runs the whole forward pass: {reason}.", stacklevel=2)

    def cache_for(self, trained: Sequence[tf.Variable]) -> PrefixCache | None:
        """What steps that train these variables alone can take, if there is something."""
        cache = self._current()
        return None if cache is None or cache.cut.depends_on(trained).any() else cache

    def _current(self) -> PrefixCache | None:
        """What is kept, unless the weights that it was made of have changed: then it is dropped.

        They change under a plan that trains more, and by whoever sets the weights of a model.
        """
        if self._cache is not None and not self._cache.is_current():
            self.close()
        return self._cache

    def look(self, epochs: int | None = None) -> None:
        """Look at the weights before the next step; so many epochs are to come, if that is told."""
        self._begins, self._left = True, self._left if epochs is None else epochs

    def onward(self, function: Callable[[Any], tf.Tensor], name: str = "") -> Iterator[np.ndarray]:
        """What a function of a batch of inputs gives, for all rows in turn.

        Raises:
            NotCacheable: nothing is computed before it, or the function does not go on from there.
        """
        cache = self._current()
        if cache is None:
            raise NotCacheable("no activations are kept")
        return cache.onward(function, name)

    def held(self, tensors: Sequence[tf.Variable]) -> np.ndarray:
        """True for the tensors that the cached activations depend on; bool, shape (N,)."""
        cache = self._current()
        return np.zeros(len(tensors), bool) if cache is None else cache.cut.depends_on(tensors)

    def step(
        self, train_step: Callable[[Any], Any], data: Any, trained: Sequence[tf.Variable]
    ) -> Any:
        """Trace a `train_step` on rows; on other data as it is.

        Raises:
            NotCacheable: it must be traced anew, for nothing is cached from now on.
        """
        cache = self.cache_for(trained)
        if cache is None or not isinstance(data, Rows):
            return train_step(self.as_samples(data))
        try:
            return cache.step(train_step, data.numbers)
        except NotCacheable as reason:
            self.cache_nothing(reason)
            raise

    def or_whole(self, train_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A train function that takes cached activations; another one where it cannot.

        It looks at the weights once an epoch, and before each step where callbacks may set them.
        What has changed at the beginning of an epoch is computed anew, if that pays off.
        """

        def function(iterator: Any) -> Any:
            model, begins, self._begins = self._model, self._begins, False
            if (begins or self._is_watched) and self._current() is None:
                model.make_train_function()
                if begins:
                    model.cache_prefix(self._left)
                return model.train_function(iterator)
            try:
                return train_function(iterator)
            except NotCacheable:  # told while it is traced: nothing was drawn
                return model.make_train_function(force=True)(iterator)

        return function

    def as_samples(self, data: Any) -> Any:
        """A batch of `fit`, with samples in the place of the numbers of their rows."""
        return self.samples.take(data.numbers) if isinstance(data, Rows) else data

    def close(self) -> None:
        """Forget what was computed."""
        if self._cache is not None:
            self._cache.close()
        self._cache = None


def enter(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Begin a `fit`: its arguments, with numbers of rows in the place of `Samples`.

    Args:
        model: elastic model.
        args: of `tf.keras.Model.fit`, by place.
        kwargs: likewise, by name.
    """
    samples = args[0] if args else kwargs.get("x")
    if not isinstance(samples, Samples):
        return args, kwargs
    given = inspect.signature(tf.keras.Model.fit).bind(model, *args, **kwargs).arguments
    weights = given.pop("class_weight", None)
    if weights:
        samples = samples.weighted(weights)
    epochs = given.get("epochs", 1) - given.get("initial_epoch", 0)
    callbacks = given.get("callbacks") or []
    is_list = isinstance(callbacks, tf.keras.callbacks.CallbackList)  # of a user's own
    callbacks = [] if is_list else tf.nest.flatten(callbacks)
    is_watched = is_list or any(map(_acts_between_steps, callbacks))
    state, own = model._elastic, type(model).train_step.__get__(model)
    rows = state.rows = RowTraining(model, samples, is_watched=is_watched)
    if not is_list:
        given["callbacks"] = [*callbacks, _Epochs(rows)]
    # not a variable of the model's: Keras does not track it
    model.__dict__["train_step"] = lambda data: rows.step(own, data, model._trained(state.plan))
    state.functions.clear()
    model.cache_prefix(epochs)
    build_by(model, lambda: samples.take(np.arange(samples.batch_size)))
    del given["self"]
    return (), {**given, "x": samples.row_batches(), "shuffle": False}


class _Epochs(tf.keras.callbacks.Callback):
    """Says when an epoch begins."""

    def __init__(self, rows: RowTraining) -> None:
        super().__init__()
        self._rows = rows

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._rows.look(self.params["epochs"] - epoch)


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

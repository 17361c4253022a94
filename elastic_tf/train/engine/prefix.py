"""The frozen prefix of a step: ops whose result for a sample never changes while a plan is trained.

They are computed once, and a traced step takes them instead of the model's inputs. Where layers end
at the cut, those behind it are called alone. Elsewhere whatever takes a result of the prefix from
outside it is handed the kept value; the prefix itself is then dead and is dropped from the executed
graph.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.cut import Cut, between, find_cut, needed_ops
from elastic_tf.files import array
from elastic_tf.graph import made, nodes_of, reached_from, replace
from elastic_tf.stack import attributes
from elastic_tf.train.engine import freezing
from elastic_tf.train.engine.operations import in_one_op
from elastic_tf.train.engine.tracing import Fingerprint, host_generators_kept
from elastic_tf.train.samples import Samples

_OTHERWISE = "the training step does not run the model's forward pass as it is"
_ALIKE = 1e-3  # relative difference of activations of one sample in two batches


class NotCacheable(Exception):  # AutoGraph hands on what adds nothing to Exception
    """Nothing can be computed in advance; the text ends a sentence that says why."""


class Forward:
    """The forward pass of a model on inputs like these, traced once with all layers frozen.

    `folds`: whether normalisations are folded into convolutions, as in a step.
    """

    def __init__(self, model: tf.keras.Model, inputs: Any, *, folds: bool = True) -> None:
        self.spec = _spec(inputs)
        self.model = model
        self._layers = None if stack.graph_ends(model) is None else stack.LayerGraph(model)
        self._results: list[tf.Tensor] = []  # of the layers
        losses: list[tf.Tensor] = []

        def forward(inputs: Any) -> list[tf.Tensor]:
            whole = self._layers.whole if self._layers else model
            with contextlib.nullcontext() if folds else freezing.only_behind([]):
                results = tf.nest.flatten(frozen_pass(model, inputs, by=whole))
            if self._layers:
                self._results, results = results, results[-self._layers.count :]
            losses.extend(model.losses)
            return [*results, *losses]

        started = time.perf_counter()
        with host_generators_kept(model):
            self.run = tf.function(forward, autograph=False).get_concrete_function(self.spec)
        seconds, state = time.perf_counter() - started, model._elastic
        state.tracing = min(state.tracing or seconds, seconds)
        self.graph = self.run.graph
        self.inputs = self.graph.inputs[: len(tf.nest.flatten(self.spec))]
        self.rows = self.inputs[0].shape[0]  # None: any number
        of_samples = reached_from(
            nodes_of(self.graph.get_operations()), [t.op for t in self.inputs]
        )
        if any(one.op in of_samples for one in losses if tf.is_tensor(one)):
            self._layers = None  # a layer may add to the loss what no layer behind it takes

    def takes(self, inputs: Any) -> bool:
        """Whether it was traced for such inputs."""
        return bool(self.spec == _spec(inputs))

    def cut(self, trained: Collection[tf.Variable]) -> Cut:
        """Where what is before depends on none of these variables."""
        whole = self.graph, self.inputs, self.graph.outputs, trained
        found, results = find_cut(*whole), {*map(id, self._results)}
        if self._layers and not results.issuperset(map(id, found.tensors)):
            # inside a layer, as a dropout that scales before it draws, which inference does not: at
            # results of layers, where no more weights lie behind these
            before = find_cut(*whole, results)
            found = before if before.reads == found.reads else found
        return found

    def behind(self, cut: Cut) -> tf.keras.Model | None:
        """A model of the layers behind a cut; None where the cut is not made of their results."""
        numbers = {id(tensor): k for k, tensor in enumerate(self._results)}
        found = [numbers.get(id(tensor), len(numbers)) for tensor in cut.tensors]
        if self._layers is None or max(found, default=0) >= len(numbers) - self._layers.count:
            return None
        return self._layers.behind(found)


class PrefixCache:
    """The activations on a cut, for every row of some samples, of the weights that were then.

    What a cache on a cut before holds is not computed again. Where samples are not independent of
    each other it is `NotCacheable`.
    """

    def __init__(
        self,
        forward: Forward,
        samples: Samples,
        cut: Cut,
        before: PrefixCache | None = None,
        *,
        run: Callable[..., list[tf.Tensor]] | None = None,
    ) -> None:
        self.cut = cut
        self.samples, self._size = samples, forward.rows
        self._varying = cut.varying(forward.model)
        self._behind = forward.behind(cut)
        handles = (outside for outside, _ in forward.graph.captures)
        self._made_of = Fingerprint([one for one in handles if id(one) in cut.reads])
        self._onward: dict[str, Callable[..., list[tf.Tensor]]] = {}
        self._arrays, left = [], samples.memory
        for tensor in cut.tensors:
            shape, dtype = (samples.rows, *tensor.shape[1:]), tensor.dtype.as_numpy_dtype
            kept = array(shape, dtype, memory=left)
            left -= 0 if isinstance(kept, np.memmap) else kept.nbytes
            self._arrays.append(kept)
        self.read = _reader(self._arrays)
        self._forward, self._before = forward, before.cut if before else None
        given = self._before.tensors if self._before else forward.inputs
        # what lies behind the cut, updates of moving statistics too, does not run
        self._run = run or between(forward.graph, given, cut.tensors)
        take = samples.take
        if samples.augment is not None:
            take = tf.function(take, autograph=False)

        def of(rows: np.ndarray) -> list[tf.Tensor]:
            if before is not None:
                return self._run(*map(tf.constant, before.read(rows)))
            return self._run(*tf.nest.flatten(take(tf.constant(rows))[0]))

        self._fill(of)

    def beside(self, samples: Samples) -> PrefixCache:
        """The activations of other samples on the same cut; what runs onward is traced once."""
        run = self._run if self._before is None else None
        other = PrefixCache(self._forward, samples, self.cut, run=run)
        other._onward = self._onward
        return other

    def is_current(self) -> bool:
        """Whether the weights before the cut are those that the activations were made of."""
        return self._made_of.is_current()

    def step(self, train_step: Callable[[Any], Any], rows: tf.Tensor) -> Any:
        """Trace a step on rows, so many each time, that takes activations in place of inputs."""
        kinds = self.cut.kinds
        taken = tf.numpy_function(self.read, [rows], [dtype for _, dtype, _ in kinds])
        for part, (_, _, shape) in zip(taken, kinds):
            part.set_shape((rows.shape[0], *shape))
        batch = (self.samples.inputs(rows.shape[0]), *self.samples.targets(rows))
        return self._trace(train_step, batch, taken)

    def onward(self, function: Callable[[Any], Any], name: str) -> Iterator[list[np.ndarray]]:
        """What a function of a batch of inputs gives, for all rows in turn, from the activations.

        Its trace is kept under a name; the values of variables may change between two calls. It is
        `NotCacheable` if it does not run the model's forward pass as it is up to the cut.
        """
        if name not in self._onward:

            @functools.partial(tf.function, autograph=False)
            def traced(*values: tf.Tensor) -> Any:
                batch = (self.samples.inputs(self._size),)
                return self._trace(lambda batch: function(batch[0]), batch, values)

            self._onward[name] = traced
        # One after another: two at once on threads of their own gave wrong numbers now and then.
        for rows, count in self._batches():
            found = self._onward[name](*map(tf.constant, self.read(rows)))
            yield [part.numpy()[:count] for part in found]

    def close(self) -> None:
        """Forget the activations; a file that holds them is removed."""
        self._arrays.clear()

    def _trace(
        self, function: Callable[[Any], Any], batch: tuple[Any, ...], values: Sequence[tf.Tensor]
    ) -> Any:
        """Trace a function of a batch that takes values in place of what lies before the cut."""
        behind, kinds = self._behind, self.cut.kinds
        if behind is None:
            return step_behind(function, batch, self._varying, kinds, values)
        sources = {part.op for part in tf.nest.flatten(batch[0])}

        def call(inputs: Any, training: Any = None, mask: Any = None) -> Any:
            given = [made(part, ("Cast", "Identity")).op for part in tf.nest.flatten(inputs)]
            if not sources.issuperset(given):
                raise NotCacheable(_OTHERWISE)
            return behind(list(values), training=training)

        call = tf.autograph.experimental.do_not_convert(call)
        with attributes(self._forward.model, call=call):
            found = function(batch)
        results = [part for part in tf.nest.flatten(found) if tf.is_tensor(part)]
        graph = tf.compat.v1.get_default_graph()
        if sources & needed_ops(graph.get_operations(), results):
            raise NotCacheable(_OTHERWISE)
        return found

    def _batches(self) -> Iterator[tuple[np.ndarray, int]]:
        """All rows in batches of one size, and how many of each are not there a second time."""
        every = np.arange(self.samples.rows)
        for start in range(0, len(every), self._size):
            rows = every[start : start + self._size]
            yield np.resize(rows, self._size), len(rows)

    def _fill(self, of: Callable[[np.ndarray], list[tf.Tensor]]) -> None:
        for rows, _ in self._batches():
            for kept, part in zip(self._arrays, of(rows)):
                kept[rows] = part.numpy()
        # another batch: some of the rows, twice
        mixed = np.random.default_rng(0).permutation(self.samples.rows)[: max(self._size // 2, 1)]
        for kept, part in zip(self.read(mixed), of(np.resize(mixed, self._size))):
            if not np.allclose(kept, part[: len(mixed)], rtol=_ALIKE, atol=_ALIKE):
                raise NotCacheable("what is computed of a sample differs from batch to batch")


def _spec(inputs: Any) -> Any:
    return tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), inputs)


def _reader(arrays: list[np.ndarray]) -> Callable[[np.ndarray], list[np.ndarray]]:
    """What arrays hold of some rows. TensorFlow never lets go of what a step calls: of this."""
    return lambda rows: [kept[rows] for kept in arrays]


def frozen_pass(model: Any, inputs: Any, training: bool = True, by: Any = None) -> Any:
    """Trace the forward pass of a model, or `by` another one of its layers, with all frozen."""
    with freezing.frozen(freezing.left_out(model, [])), in_one_op(model):
        return (by or model)(inputs, training=training)


def step_behind(
    train_step: Callable[[Any], Any],
    batch: tuple[Any, ...],
    varying: Collection[tf.Variable],
    kinds: Sequence[Any],
    values: Sequence[tf.Tensor],
) -> Any:
    """Trace a step of a batch that takes values in the place of the tensors on its cut.

    The batch's inputs hold the place of the samples; any numbers will do. The prefix does not
    depend on the trainable variables `varying`. Another cut than the values', by its `kinds`, is
    `NotCacheable`.
    """
    with freezing.only_behind(varying):
        logs = train_step(batch)
    graph = tf.compat.v1.get_default_graph()
    results = [part for part in tf.nest.flatten(logs) if tf.is_tensor(part)]
    cut = find_cut(graph, tf.nest.flatten(batch[0]), results, varying)
    if cut.kinds != kinds:
        raise NotCacheable(_OTHERWISE)
    given = {id(tensor): value for tensor, value in zip(cut.tensors, values)}
    for tensor, value in zip(cut.tensors, values):
        replace(tensor, value, {*tensor.consumers()} - cut.prefix)
    return tf.nest.map_structure(lambda part: given.get(id(part), part), logs)

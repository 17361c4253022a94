"""The seam to what happens in `fit`."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.stack.tensorflow import IS_KERAS2, KERAS, raw, variables_of

if IS_KERAS2:
    _adapters: Any = import_module(f"{KERAS}.src.engine.data_adapter")
    _Generator: Any = import_module(f"{KERAS}.src.backend").RandomGenerator
    _Dataset = _adapters.DatasetAdapter
else:
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator
    from keras.src.trainers.data_adapters import array_data_adapter, tf_dataset_adapter

    _Dataset = tf_dataset_adapter.TFDatasetAdapter

_FIT = inspect.unwrap(tf.keras.Model.fit).__code__
_BEFORE_XLA = 8  # arguments of `compile`, `jit_compile` the last of them
_PASS = "_enumerate_iterator"  # attribute of Keras 3's iterator of epochs


def running_fit(model: tf.keras.Model) -> RunningFit | None:
    """The `fit` of a model that this is called in; None outside of one.

    Keras keeps what it knows of the data in a local variable.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is _FIT and frame.f_locals["self"] is model:
            return RunningFit(frame.f_locals)
        frame = frame.f_back
    return None


class RunningFit:
    """A `fit`: its epochs, and its data as far as Keras knows them before they are read.

    It is made of the local variables of Keras's function.

    Attributes:
        first_epoch: as it was asked for.
        epochs: at which it ends.
        spec: of its batches, or with Keras 3 arrays of all samples; None where it is not known.
        is_dataset: whether it was given batches, and no arrays.
    """

    def __init__(self, held: dict[str, Any]) -> None:
        self.first_epoch: int = held["initial_epoch"]
        self.epochs: int = held["epochs"]
        self._model, self._held = held["self"], held
        self._start: Any = None  # where Keras 3 was let begin
        self._source = source = held["data_handler" if IS_KERAS2 else "epoch_iterator"]
        self._adapter = adapter = source._adapter if IS_KERAS2 else source.data_adapter
        self.is_dataset = isinstance(adapter, _Dataset)
        if IS_KERAS2:
            # Keras 2.15 does not know what a `DatasetCreator` will make
            is_known = not isinstance(adapter, _adapters.DatasetCreatorAdapter)
            self.spec = adapter.get_dataset().element_spec if is_known else None
        elif self.is_dataset:
            self.spec = adapter.get_tf_dataset().element_spec
        else:
            name = "_inputs" if self._is_array else "_output_signature"
            self.spec = getattr(adapter, name, None)

    @property
    def _is_array(self) -> bool:
        return isinstance(self._adapter, array_data_adapter.ArrayDataAdapter)

    @property
    def steps(self) -> int | None:
        """Steps in an epoch, where they are known."""
        source = self._source
        found: int | None = source._inferred_steps if IS_KERAS2 else source.num_batches
        if IS_KERAS2 or found is None or source.steps_per_epoch:
            return found
        if self._adapter.num_batches is not None:
            return found
        return found - source.steps_per_execution  # Keras counts the call that found no data

    def rows_to_validate(self, batch_size: int) -> int:
        """Samples of a validation, in batches of that size if nothing tells; 0: not known."""
        data, steps = self._held["validation_data"], self._held["validation_steps"]
        if isinstance(data, tf.data.Dataset):
            first = getattr(tf.nest.flatten(data.element_spec)[0], "shape", None)
            size = first[0] if first is not None and first.rank else None
            return max(int(steps or data.cardinality()), 0) * (size or batch_size)
        x = tf.nest.flatten(data[0]) if isinstance(data, (tuple, list)) else []
        return len(x[0]) if x and hasattr(x[0], "shape") else 0

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of arrays."""

        def told(name: str) -> Any:
            found = getattr(self._adapter, name)
            return found() if IS_KERAS2 else found

        if told("get_size" if IS_KERAS2 else "num_batches") == 1 and told("has_partial_batch"):
            return int(told("partial_batch_size"))
        size: int | None = told("batch_size")
        return size

    def begin_at(
        self,
        epoch: int,
        step: int,
        steps: int | None,
        *,
        arrived: Callable[[int], None],
        ready: Callable[[Any], None],
    ) -> None:
        """Begin in the middle, as if all before had been trained.

        What was trained before is drawn again and dropped, which gives the same batches afterwards
        as long as their order is fixed by seeds: all batches so far, but of the earlier passes over
        a `tf.data.Dataset` one batch each, for a `shuffle` takes its seed when a pass begins.

        Args:
            epoch: to begin with; the one after the last begins none.
            step: steps that were trained of it.
            steps: in an epoch, where known.
            arrived: called with each epoch until then, once its pass begins.
            ready: called with the iterator of the next batch, where `step` is above 0.
        """
        begin = self._begin_in_keras2 if IS_KERAS2 else self._begin_in_keras3
        begin(epoch, step, steps, arrived, ready)

    def _begin_in_keras2(
        self, epoch: int, step: int, steps: int | None, arrived: Any, ready: Any
    ) -> None:
        handler, every = self._source, self._source.enumerate_epochs
        if steps is not None:
            handler._inferred_steps = steps

        def epochs() -> Iterator[tuple[int, Any]]:
            if epoch >= self.epochs:
                return
            for now, iterator in every():
                arrived(now)
                if now < epoch:
                    if not self._adapter.should_recreate_iterator():
                        _skip(iterator, steps or 0)
                    elif self.is_dataset:
                        _skip(iterator, 1)  # shuffles below a shuffle take their seeds with it
                    continue
                if now == epoch and step:
                    _skip(iterator, step)
                    handler._initial_step = step
                    ready(iterator)
                yield now, iterator

        handler.enumerate_epochs = epochs

    def _begin_in_keras3(
        self, epoch: int, step: int, steps: int | None, arrived: Any, ready: Any
    ) -> None:
        iterator, in_call = self._source, self._source.steps_per_execution
        is_untold = iterator.num_batches is None and steps is not None
        self._start = self._model._initial_epoch = np.int64(min(epoch, self.epochs))
        if epoch >= self.epochs:
            return
        for now in range(self.first_epoch, epoch):
            arrived(now)
            for begin, _, batches in getattr(iterator, _PASS)():
                if not begin:
                    _skip(batches, self._drawn_in_a_pass(in_call))
                if is_untold:
                    break  # Keras made one iterator for the pass, and none when it was over
            if is_untold:
                self._adapter.on_epoch_end()
        if is_untold:
            iterator._num_batches = steps + in_call
        arrived(epoch)
        if step:
            begun = getattr(iterator, _PASS)()
            *_, (_, _, batches) = itertools.islice(begun, -(-step // in_call))
            _skip(batches, step)
            ready(batches)

            def once() -> Any:
                del vars(iterator)[_PASS]
                return begun

            vars(iterator)[_PASS] = once

    def _drawn_in_a_pass(self, in_call: int) -> int:
        """Batches to draw of an earlier pass, which has begun, so that later ones are the same."""
        iterator = self._source
        if iterator.steps_per_epoch:  # the next one goes on where it ends
            calls = -(-iterator.steps_per_epoch // in_call)
            left = iterator._num_batches or np.inf
            return int(min(calls * in_call, left - iterator._steps_seen + in_call))
        # shuffles below a shuffle take their seeds with the first batch
        return int(self.is_dataset or self._is_array)

    @property
    def is_moved(self) -> bool:
        """Whether another callback has let it begin elsewhere."""
        if IS_KERAS2:
            return bool(self._source._initial_epoch != self.first_epoch)
        return self._model._initial_epoch is not self._start

    def end(self) -> None:
        """Leave nothing behind: Keras 3 would let every later `fit` begin there."""
        if not IS_KERAS2:
            self._model._initial_epoch = None


def _skip(batches: Any, count: int) -> None:
    """Draw so many batches."""
    for number in range(count):
        if next(batches, None) is None:
            raise ValueError(
                "The data must be those of the training that was interrupted. Received: data that "
                f"end after {number} batches, {count} of them were trained. Train on the same "
                "data, or remove the backup."
            )


def seeds_of(model: Any) -> list[tf.Variable]:
    """What the steps of a model change beside weights, metrics and the optimizer."""
    if not IS_KERAS2:
        others = [*model.weights, *(one for metric in model.metrics for one in metric.variables)]
        known = {id(raw(one)) for one in others}
        return [one for one in variables_of(model) if id(one) not in known]
    found = [model._train_counter]
    for part in _parts(model):
        if isinstance(part, _Generator):
            part = part._generator if part._built else None
        if isinstance(part, tf.random.Generator):
            found.append(part.state)
    return found


def generators_made_readable(model: Any) -> bool:
    """Let random layers draw from generators whose place can be read; whether that is new.

    Dropout of Keras 2.15 keeps its place in an op, out of reach. It draws other numbers afterwards,
    equally seeded.
    """
    changed = False
    for part in _parts(model) if IS_KERAS2 else ():
        if isinstance(part, _Generator):
            if part._rng_type == _Generator.RNG_LEGACY_STATEFUL:
                part._rng_type, part._built, changed = _Generator.RNG_STATEFUL, False, True
            part._maybe_init()
    return changed


def shared_seed(make: bool = False) -> tf.Variable | None:
    """What random operations without a seed share, where it is there or is to be made.

    Keras 2 has none.
    """
    if IS_KERAS2:
        return None
    if not make and global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR) is None:
        return None
    return raw(seed_generator.global_seed_generator().state)


def _parts(model: Any) -> Iterator[Any]:
    """The attributes of all layers."""
    for layer in model._flatten_layers():
        yield from list(vars(layer).values())


def without_auto_xla(args: Sequence[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Options of `compile` with XLA off where Keras 3 would turn it on by itself, on a GPU."""
    is_auto = len(args) < _BEFORE_XLA and options.get("jit_compile", "auto") == "auto"
    return options if IS_KERAS2 or not is_auto else {**options, "jit_compile": False}

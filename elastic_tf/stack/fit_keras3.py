"""The seam to what happens in `fit` of Keras 3."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random import seed_generator
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.trainers.data_adapters import array_data_adapter, tf_dataset_adapter

from elastic_tf.stack.keras3 import raw, variables_of

__all__ = [
    "RunningFit",
    "SavedState",
    "build_by",
    "generators_made_readable",
    "seeds_of",
    "shared_seed",
]

_BUILD = "_maybe_symbolic_build"  # attribute of a model
_PASS = "_enumerate_iterator"  # attribute of Keras's iterator of epochs


class SavedState(KerasSaveable, tf.train.experimental.PythonState):
    """A state of one's own in the files of a model; models that do not have it leave it there."""

    def _obj_type(self) -> str:
        return "Loss"  # of the kinds that Keras knows one without a state

    def save_own_variables(self, store: Any) -> None:
        """Called when weights are written."""
        store["text"] = np.frombuffer(self.serialize().encode(), np.uint8)

    def load_own_variables(self, store: Any) -> None:
        """Called when weights are read."""
        if "text" in [*store.keys()]:
            self.deserialize(store["text"][()].tobytes())


class RunningFit:
    """A `fit`: its epochs, and its data as far as Keras knows them before they are read.

    Args:
        held: local variables of Keras's function; its iterator of epochs is one of them.

    Attributes:
        first_epoch: as it was asked for.
        epochs: at which it ends.
        spec: of its batches, or arrays of all samples; None where it is not known.
        is_dataset: whether it was given batches, and no arrays.
    """

    def __init__(self, held: dict[str, Any]) -> None:
        self._model, self._iterator = held["self"], held["epoch_iterator"]
        self.first_epoch: int = held["initial_epoch"]
        self.epochs: int = held["epochs"]
        self._adapter = adapter = self._iterator.data_adapter
        self._start: Any = None  # where it was let begin
        self.is_dataset = isinstance(adapter, tf_dataset_adapter.TFDatasetAdapter)
        self._is_array = isinstance(adapter, array_data_adapter.ArrayDataAdapter)
        if self.is_dataset:
            self.spec = adapter.get_tf_dataset().element_spec
        else:
            self.spec = getattr(adapter, "_inputs" if self._is_array else "_output_signature", None)

    @property
    def steps(self) -> int | None:
        """Steps in an epoch, where they are known."""
        iterator, found = self._iterator, self._iterator.num_batches
        if found is None or iterator.steps_per_epoch or self._adapter.num_batches is not None:
            return found
        return found - iterator.steps_per_execution  # Keras counts the call that found no data

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of arrays."""
        if self._adapter.num_batches == 1 and self._adapter.has_partial_batch:
            return int(self._adapter.partial_batch_size)
        size: int | None = self._adapter.batch_size
        return size

    def begin_at(
        self,
        epoch: int,
        step: int,
        steps: int | None,
        *,
        arrived: Callable[[int], None],
        skip: Callable[[Any, int], None],
        ready: Callable[[Any], None],
    ) -> None:
        """Begin in the middle; see `elastic_tf.backup.data_position`."""
        iterator, in_call = self._iterator, self._iterator.steps_per_execution
        is_untold = iterator.num_batches is None and steps is not None
        self._start = self._model._initial_epoch = np.int64(min(epoch, self.epochs))
        if epoch >= self.epochs:
            return
        for now in range(self.first_epoch, epoch):
            arrived(now)
            for begin, _, batches in getattr(iterator, _PASS)():
                if not begin:
                    skip(batches, self._drawn_in_a_pass(in_call))
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
            skip(batches, step)
            ready(batches)

            def once() -> Any:
                del vars(iterator)[_PASS]
                return begun

            vars(iterator)[_PASS] = once

    def _drawn_in_a_pass(self, in_call: int) -> int:
        """Batches to draw of an earlier pass, which has begun, so that later ones are the same."""
        iterator = self._iterator
        if iterator.steps_per_epoch:  # the next one goes on where it ends
            calls = -(-iterator.steps_per_epoch // in_call)
            left = iterator._num_batches or np.inf
            return int(min(calls * in_call, left - iterator._steps_seen + in_call))
        # shuffles below a shuffle take their seeds with the first batch
        return int(self.is_dataset or self._is_array)

    @property
    def is_moved(self) -> bool:
        """Whether another callback has let it begin elsewhere."""
        return self._model._initial_epoch is not self._start

    def end(self) -> None:
        """Leave nothing behind: Keras would let every later `fit` begin there."""
        self._model._initial_epoch = None


def build_by(model: Any, batch: Callable[[], Any]) -> None:
    """Build a model in the `fit` that begins by this batch.

    Under a strategy Keras 3 would draw one from the data, and take it for (x, y).
    """

    def build(**given: Any) -> None:
        del vars(model)[_BUILD], given
        getattr(model, _BUILD)(data_batch=batch())

    if model._distribute_strategy is not None:
        vars(model)[_BUILD] = build


# Random generators


def seeds_of(model: Any) -> list[tf.Variable]:
    """What the steps of a model change beside weights, metrics and the optimizer."""
    of_metrics = {id(raw(one)) for metric in model.metrics for one in metric.variables}
    weights = {id(raw(one)) for one in model.weights}
    return [one for one in variables_of(model) if id(one) not in weights | of_metrics]


def generators_made_readable(model: Any) -> bool:
    """Let random layers draw from generators whose place can be read: those of Keras 3 do."""
    del model
    return False


def shared_seed(make: bool = False) -> tf.Variable | None:
    """What random operations without a seed share, where it is there or is to be made."""
    if not make and global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR) is None:
        return None
    return raw(seed_generator.global_seed_generator().state)

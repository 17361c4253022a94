"""The seam to what happens in `fit` of Keras 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import tensorflow as tf

__all__ = [
    "RunningFit",
    "SavedState",
    "build_by",
    "generators_made_readable",
    "seeds_of",
    "shared_seed",
]

_PACKAGE = tf.keras.Model.__module__.partition(".")[0]
_Generator: Any = import_module(f"{_PACKAGE}.src.backend").RandomGenerator
_adapters: Any = import_module(f"{_PACKAGE}.src.engine.data_adapter")
SavedState = tf.train.experimental.PythonState


class RunningFit:
    """A `fit`: its epochs, and its data as far as Keras knows them before they are read.

    Args:
        held: local variables of Keras's function; its data handler is one of them.

    Attributes:
        first_epoch: as it was asked for.
        epochs: at which it ends.
        spec: of its batches; None where it is not known.
        is_dataset: whether it was given batches, and no arrays.
    """

    def __init__(self, held: dict[str, Any]) -> None:
        self._handler = handler = held["data_handler"]
        self._adapter = adapter = handler._adapter
        self.first_epoch: int = handler._initial_epoch
        self.epochs: int = handler._epochs
        self.is_dataset = isinstance(adapter, _adapters.DatasetAdapter)
        # Keras 2.15 does not know what a `DatasetCreator` will make
        is_known = not isinstance(adapter, _adapters.DatasetCreatorAdapter)
        self.spec = adapter.get_dataset().element_spec if is_known else None

    @property
    def steps(self) -> int | None:
        """Steps in an epoch, where they are known."""
        found: int | None = self._handler._inferred_steps
        return found

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of arrays."""
        if self._adapter.get_size() == 1 and self._adapter.has_partial_batch():
            return int(self._adapter.partial_batch_size())
        size: int | None = self._adapter.batch_size()
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
        handler, every = self._handler, self._handler.enumerate_epochs
        if steps is not None:
            handler._inferred_steps = steps

        def epochs() -> Iterator[tuple[int, Any]]:
            if epoch >= self.epochs:
                return
            for now, iterator in every():
                arrived(now)
                if now < epoch:
                    if not self._adapter.should_recreate_iterator():
                        skip(iterator, steps or 0)
                    elif self.is_dataset:
                        skip(iterator, 1)  # shuffles below a shuffle take their seeds with it
                    continue
                if now == epoch and step:
                    skip(iterator, step)
                    handler._initial_step = step
                    ready(iterator)
                yield now, iterator

        handler.enumerate_epochs = epochs

    @property
    def is_moved(self) -> bool:
        """Whether another callback has let it begin elsewhere."""
        return bool(self._handler._initial_epoch != self.first_epoch)

    def end(self) -> None:
        """Leave nothing behind."""


def build_by(model: Any, batch: Callable[[], Any]) -> None:
    """Build a model in the `fit` that begins by this batch; Keras 2 builds it in the first step."""
    del model, batch


# Random generators


def seeds_of(model: Any) -> list[tf.Variable]:
    """What the steps of a model change beside weights, metrics and the optimizer."""
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
    for part in _parts(model):
        if isinstance(part, _Generator):
            if part._rng_type == _Generator.RNG_LEGACY_STATEFUL:
                part._rng_type, part._built, changed = _Generator.RNG_STATEFUL, False, True
            part._maybe_init()
    return changed


def shared_seed(make: bool = False) -> tf.Variable | None:
    """What random operations without a seed share; Keras 2 has none."""
    del make
    return None


def _parts(model: Any) -> Iterator[Any]:
    """The attributes of all layers."""
    for layer in model._flatten_layers():
        yield from list(vars(layer).values())

"""The probe, the samples on which importance is evaluated: other ones at each selection."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.train.batches import is_batched
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.samples import Samples


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """What the importance is evaluated on: `probe=et.Probe(train, size=128)`.

    Attributes:
        data: a batched `tf.data.Dataset` of (x, y) or (x, y, sample_weight), or arrays in a tuple
            of that form, or `Samples`; None: the next batches of `fit` itself.
        size: samples in a draw; fewer where batches differ in more than their length, for samples
            of one shape are taken then.
        seed: of the draws from arrays.
    """

    data: Any = None
    size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        arguments.count("size", self.size)
        arguments.count("seed", self.seed, least=0, most=2**64 - 1)
        self.draws()

    def draws(self) -> Draws | None:
        """Draws from `data`; None where there is none."""
        return None if self.data is None else Draws(self.data, self.size, self.seed)


class Draws:
    """Draws samples from what a `Probe` holds, other ones at each draw."""

    def __init__(self, source: Any, size: int, seed: int) -> None:
        source = source.arrays if isinstance(source, Samples) else source
        self.source, self.size = source, size
        self.drawn = 0  # so far, batches of the dataset
        self._generator = np.random.default_rng(seed)
        self._batches: Iterator[Any] | None = None
        if not isinstance(source, tf.data.Dataset) and not (
            isinstance(source, (tuple, list)) and len(source) in (2, 3)
        ):
            raise TypeError(
                "`probe` must be a batched tf.data.Dataset of (x, y) or (x, y, sample_weight), "
                f"or a tuple of such arrays. Received: {type(source).__name__}: "
                f"{brief(source)}. Use the training data: probe=train."
            )

    def draw(self) -> tuple[Any, Any, Any]:
        """x, y and sample weights (or None) of `size` samples, or of all there are."""
        batches = [self._next()]
        while isinstance(self.source, tf.data.Dataset) and sum(map(size_of, batches)) < self.size:
            batches.append(self._next())
        return joined(batches, self.size)

    def skip(self, drawn: int) -> None:
        """Leave out what was drawn until then."""
        while self.drawn < drawn:
            self._next()

    def _next(self) -> Any:
        """The next batch of the dataset, or as many rows of the arrays as are asked for."""
        self.drawn += 1
        if not isinstance(self.source, tf.data.Dataset):
            return self._rows()
        try:
            if self._batches is None:
                # `tf.data` would read ahead otherwise, in a thread, and draw a pass's seeds early,
                # from a sequence that the training data share if they are the same dataset.
                options = tf.data.Options()
                options.experimental_optimization.inject_prefetch = False
                self._batches = iter(self.source.repeat().with_options(options))
            batch = next(self._batches, None)
        except Exception as error:  # whatever the data come from
            received = f"{type(error).__name__} from batch {self.drawn}: {brief(str(error))}"
            raise self._error(received) from error
        if batch is None:
            raise self._error("an empty dataset")
        _, y, _ = tf.keras.utils.unpack_x_y_sample_weight(batch)
        if y is None or not is_batched(batch):
            raise self._error(self.source.element_spec, "Use dataset.batch(batch_size).")
        return batch

    def _error(self, received: Any, hint: str = "Look at its source.") -> ValueError:
        rule = "`probe` must yield batches of (x, y)."
        return ValueError(f"{rule} Received: {received}. {hint}")

    def _rows(self) -> Any:
        counts = {len(part) for part in tf.nest.flatten(self.source) if part is not None}
        if 0 in counts or len(counts) > 1:
            raise ValueError(
                "`probe` must hold samples, as many in x as in y. Received: arrays of "
                f"length {', '.join(map(str, sorted(counts)))}."
            )
        rows = self._generator.permutation(counts.pop())[: self.size]
        return tf.nest.map_structure(
            lambda part: None if part is None else tf.gather(part, rows), self.source
        )


def size_of(batch: Any) -> int:
    """Samples in a batch."""
    return int(tf.nest.flatten(batch)[0].shape[0] or 0)


def joined(batches: list[Any], size: int) -> tuple[Any, Any, Any]:
    """x, y and sample weights (or None) of the first `size` samples of the first one's shape."""
    parts = [tf.keras.utils.unpack_x_y_sample_weight(batch) for batch in batches]
    shapes = [[getattr(one, "shape", ())[1:] for one in tf.nest.flatten(part)] for part in parts]
    parts = [part for part, shape in zip(parts, shapes) if shape == shapes[0]]
    return tf.nest.map_structure(
        lambda *one: None if one[0] is None else tf.concat(one, axis=0)[:size], *parts
    )


def needs_probe(function: Callable[..., np.ndarray]) -> bool:
    """Whether an importance cannot do without samples."""
    second = [*inspect.signature(function).parameters.values()][1:2]
    return not second or second[0].default is inspect.Parameter.empty


class Worth:
    """Evaluates the importance again and again.

    Its function is given the probe's `sample_weight`, and the size of the batches of training as
    `micro_batch_size`, where it has such parameters.
    """

    def __init__(
        self,
        function: Callable[..., np.ndarray],
        probe: Draws | None,
        micro_batch_size: int | None = None,
    ) -> None:
        self.needs_probe = needs_probe(function)
        self.strategy: str = getattr(function, "strategy", "exact")
        self._function, self._parameters = function, inspect.signature(function).parameters
        self._probe = probe if self.needs_probe else None
        self._micro_batch_size = micro_batch_size
        self._drawn: dict[int, int] = {}  # by the epoch, batches of the probe until then

    def draw(self, epoch: int) -> Any:
        """x, y and sample weights (or None) of the probe as `epoch` begins; None without one."""
        if self._probe is None:
            return None
        try:
            return self._probe.draw()
        finally:
            self._drawn[epoch] = self._probe.drawn

    def evaluate(self, model: ElasticMixin, probe: Any) -> np.ndarray:
        """The importance on what was drawn; float64, shape (N,)."""
        if not self.needs_probe:
            return np.asarray(self._function(model), np.float64)
        x, y, weight = probe
        given = {"sample_weight": weight, "micro_batch_size": self._micro_batch_size}
        known = self._parameters
        taken = {k: one for k, one in given.items() if one is not None and k in known}
        return np.asarray(self._function(model, x, y, **taken), np.float64)

    def state(self) -> list[Any]:
        """All that `go_on` needs, as JSON values."""
        return [*self._drawn.items()]

    def go_on(self, state: list[Any]) -> None:
        """Go on from `state`; `pass_over` is to be called for every epoch that was begun."""
        self._drawn = dict(state)

    def pass_over(self, epoch: int) -> None:
        """Draw what the probe drew before that epoch, and drop it."""
        if self._probe is not None:
            self._probe.skip(self._drawn.get(epoch, 0))

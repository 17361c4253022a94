"""The probe: the samples on which importance is evaluated, other ones at each selection."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.inputs.batches import is_batched


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """What the importance is evaluated on: `probe=et.Probe(train, size=128)`.

    Attributes:
        data: a batched `tf.data.Dataset` of (x, y) or (x, y, sample_weight), or arrays in a tuple
            of that form; None: the next batches of `fit` itself.
        size: samples in a draw.
        seed: of the draws from arrays.
        gradient: data in the same form that the gradient is taken on, while the update comes from
            `data`: validation data select what helps there. None: `data` alone.
    """

    data: Any = None
    size: int = 64
    seed: int = 0
    gradient: Any = None

    def __post_init__(self) -> None:
        arguments.count("size", self.size)
        arguments.count("seed", self.seed, least=0, most=2**64 - 1)
        self.draws()

    def draws(self) -> tuple[Draws | None, Draws | None]:
        """Draws from `data` and from `gradient`; None of what there is not."""
        return self._draws("probe", self.data), self._draws("gradient", self.gradient)

    def _draws(self, name: str, data: Any) -> Draws | None:
        return None if data is None else Draws(data, self.size, self.seed, name=name)


class Draws:
    """Draws samples from a data set or from arrays, other ones at each draw.

    Args:
        source: a batched `tf.data.Dataset` of (x, y) or (x, y, sample_weight), or arrays in a
            tuple of that form.
        size: samples in a draw.
        seed: of the draws from arrays.
        name: what the option is called in messages.
    """

    def __init__(self, source: Any, size: int, seed: int, *, name: str = "probe") -> None:
        self.source = source
        self.size = size
        self.name = name
        self.batch_size: int | None = None  # of the dataset, once a batch was drawn
        self.draws: list[int] = []  # batches of the dataset in each draw so far
        self._generator = np.random.default_rng(seed)
        self._batches: Iterator[Any] | None = None
        if not isinstance(source, tf.data.Dataset) and not (
            isinstance(source, (tuple, list)) and len(source) in (2, 3)
        ):
            raise TypeError(
                f"`{name}` must be a batched tf.data.Dataset of (x, y) or (x, y, "
                f"sample_weight), or a tuple of such arrays. Received: {_kind(source)}: "
                f"{brief(source)}. Use the training data: probe=train."
            )

    def draw(self) -> tuple[Any, Any, Any]:
        """x, y and sample weights (or None) of `size` samples, or of all there are.

        Raises:
            ValueError: the source fails or is no probe; the probe is named.
        """
        self.draws.append(0)
        if not isinstance(self.source, tf.data.Dataset):
            return self._draw_rows(*self.source)
        parts: list[Any] = []
        count = 0
        while count < self.size:
            self.draws[-1] += 1  # at first, for an error is no end of the data
            part, size = self._next()
            parts.append(part)
            count += size
        joined = tf.nest.map_structure(lambda *p: tf.concat(p, axis=0)[: self.size], *parts)
        return joined if len(joined) == 3 else (*joined, None)

    def skip(self, batches: int) -> None:
        """Go on as after a draw of so many batches, of which the last one may have failed."""
        for _ in range(batches):
            with contextlib.suppress(ValueError):
                self._next()
        self.draws.append(batches)

    def state(self) -> dict[str, Any]:
        """Where the draws from arrays are, as JSON values."""
        return dict(self._generator.bit_generator.state)

    def go_on(self, state: dict[str, Any]) -> None:
        """Draw from arrays what comes after `state`."""
        self._generator.bit_generator.state = state

    def _next(self) -> tuple[Any, int]:
        """The next batch of the dataset, and its size."""
        try:
            if self._batches is None:
                self._batches = iter(endless(self.source))
            batch = next(self._batches, None)
        except Exception as error:  # whatever the data come from
            raise ValueError(
                f"`{self.name}` must yield batches. Received: {type(error).__name__} from draw "
                f"{len(self.draws)}: {str(error).splitlines()[0] if str(error) else 'no message'}. "
                "Look at its source."
            ) from error
        if batch is None:
            raise ValueError(
                f"`{self.name}` must yield batches. Received: an empty dataset. Look at its source."
            )
        x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        if y is None or not is_batched(batch):
            raise ValueError(
                f"`{self.name}` must yield batches of (x, y). Received: "
                f"{self.source.element_spec}. Use dataset.batch(batch_size)."
            )
        size = int(tf.nest.flatten(x)[0].shape[0])
        self.batch_size = max(size, self.batch_size or 0)  # the last batch may be smaller
        return ((x, y) if weight is None else (x, y, weight)), size

    def _draw_rows(self, x: Any, y: Any, weight: Any = None) -> tuple[Any, Any, Any]:
        data = (x, y) if weight is None else (x, y, weight)
        counts = {len(part) for part in tf.nest.flatten(data)}
        if 0 in counts or len(counts) > 1:
            raise ValueError(
                f"`{self.name}` must hold samples, as many in x as in y. Received: arrays of "
                f"length {', '.join(map(str, sorted(counts)))}."
            )
        rows = self._generator.permutation(counts.pop())[: self.size]
        drawn = tf.nest.map_structure(lambda part: tf.gather(part, rows), data)
        return drawn if len(drawn) == 3 else (*drawn, None)


def endless(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Pass after pass, each begun only when its first batch is asked for.

    `tf.data` would read ahead otherwise, in a thread. When a pass begins its seeds are drawn, from
    a sequence that the training data share if they are the same dataset.
    """
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return batches.repeat().with_options(options)


def _kind(source: Any) -> str:
    """What was given for a probe, in words."""
    length = f" of length {len(source)}" if isinstance(source, (tuple, list)) else ""
    return type(source).__name__ + length

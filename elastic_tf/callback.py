"""The callback that makes `model.fit` elastic: every few epochs it chooses what to train."""

from __future__ import annotations

import dataclasses
import inspect
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import importance as importances
from elastic_tf.budget import Rho, rho_at
from elastic_tf.model import ElasticMixin
from elastic_tf.profiler import Profiler
from elastic_tf.selection import Selection, select_tensors
from elastic_tf.timing import TimingProfile

# Two steps of each kind under the profiler and two by the clock: 0.4 % of 1,500 steps.
_REPROFILE_REPEATS = 2


@dataclasses.dataclass(frozen=True, eq=False)
class SelectionRecord:
    """One selection made during training.

    Attributes:
        epoch: the epoch that it was made for, from 0.
        rho: allowed step time / full step time that was asked for.
        selection: what was selected, with its predicted time.
        importance: what it was selected by; float64, shape (N,), forward order.
        predicted_ratio: predicted step time / full step time.
        seconds_importance: wall-clock of drawing the probe and evaluating the importance.
        seconds_solve: wall-clock of the solver.
        seconds_retrace: wall-clock of the first step under the new mask beyond the median of the
            following ones; None until the first epoch has ended.
    """

    epoch: int
    rho: float
    selection: Selection
    importance: np.ndarray
    predicted_ratio: float
    seconds_importance: float
    seconds_solve: float
    seconds_retrace: float | None = None

    @property
    def mask(self) -> np.ndarray:
        """True where a tensor is trained; bool, shape (N,), forward order."""
        return self.selection.mask


@dataclasses.dataclass(frozen=True, eq=False)
class ProfileRecord:
    """One profile made during training.

    Attributes:
        epoch: the epoch before which it was made.
        profile: the times.
        seconds: wall-clock that it took.
        traced: whether the steps were traced for it, as they are once in a training.
    """

    epoch: int
    profile: TimingProfile
    seconds: float
    traced: bool


class ElasticCallback(tf.keras.callbacks.Callback):
    """Trains, at any time, the tensors that lower the loss most within `rho` of the step time.

    Before the first epoch and then every `interval` epochs it draws a probe, evaluates the
    importance of every tensor, selects, and hands the mask to the model. When training ends the
    model's mask is what it was before.

    Args:
        profile: times measured on this device by `profile_model`.
        rho: allowed step time / full step time in (0, 1]; or a schedule `epoch -> rho`.
        interval: epochs between two selections; 3 keeps 80 % of the importance (paper, Fig. 7a).
        probe: samples on which importance is evaluated: the training data as a `tf.data.Dataset`
            in batches of the size that was profiled, or `(x, y)` arrays.
        probe_size: samples drawn for each selection.
        importance: function `(model, x, y) -> array (N,)`; see `elastic_tf.importance`.
        required: True where a tensor is trained whatever its importance; bool, shape (N,).
        reprofile_every: epochs after which the device is profiled again, for devices that throttle;
            None never does (Sec. 5.4). Takes about six steps; `profiles` holds the results.
        seed: of the draws from arrays.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 3.
    """

    def __init__(
        self,
        profile: TimingProfile,
        rho: Rho = 0.5,
        interval: int = 3,
        probe: tf.data.Dataset | tuple[Any, Any] | None = None,
        *,
        probe_size: int = 64,
        importance: Callable[..., np.ndarray] = importances.loss_decrease,
        required: np.ndarray | None = None,
        reprofile_every: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        numbers = {"interval": interval, "probe_size": probe_size}
        if reprofile_every is not None:
            numbers["reprofile_every"] = reprofile_every
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ValueError(f"`{name}` must be an integer of at least 1. Received: {value!r}.")
        if not isinstance(profile, TimingProfile):
            raise TypeError(
                f"`profile` must be a TimingProfile. Received: {profile!r}. Measure one with "
                "elastic_tf.profile_model or read one with elastic_tf.TimingProfile.load."
            )
        if not callable(rho):
            rho_at(rho, 0)
        self.profile = profile
        self.rho = rho
        self.interval = int(interval)
        self.probe = _Probe(probe, int(probe_size), seed)
        self.importance = importance
        self.required = required
        self.reprofile_every = reprofile_every
        self.selections: list[SelectionRecord] = []
        self.profiles: list[ProfileRecord] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Refuse what cannot be served; forget an earlier `fit`."""
        if not isinstance(self.model, ElasticMixin):
            raise TypeError(
                f"ElasticCallback serves elastic models. Received: {type(self.model).__name__}. "
                "Make one with elastic_tf.ElasticModel.from_model(model) and compile it."
            )
        self.profile.check(self.model)
        self.selections = []
        self.profiles = []
        self._profiler: Profiler | None = None
        self._first_epoch: int | None = None
        self._current = self.profile
        self._mask_before = self.model.mask
        self._selected_at: int | None = None
        self._step_seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Profile and select anew where their intervals have passed."""
        self._step_seconds = []
        if self._first_epoch is None:
            self._first_epoch = epoch
        elif self.reprofile_every and (epoch - self._first_epoch) % self.reprofile_every == 0:
            self._reprofile(epoch)
        if self._selected_at is None or epoch - self._selected_at >= self.interval:
            self._select(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._step_started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._step_seconds.append(time.perf_counter() - self._step_started)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note how long the first step under a new mask took."""
        record = self.selections[-1]
        if record.seconds_retrace is None and len(self._step_seconds) > 1:
            first, *later = self._step_seconds
            retrace = max(first - float(np.median(later)), 0.0)
            self.selections[-1] = dataclasses.replace(record, seconds_retrace=retrace)
        if logs is not None:
            logs["predicted_ratio"] = record.predicted_ratio

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Give the model its mask back."""
        self.model.set_mask(self._mask_before)

    def _select(self, epoch: int) -> None:
        """Draw, evaluate, solve, set the mask; keep the last selection where the probe fails."""
        rho = rho_at(self.rho, epoch)
        started = time.perf_counter()
        try:
            importance = self._evaluate()
            evaluated = time.perf_counter()
            selection = select_tensors(importance, self._current, rho, required=self.required)
            solved = time.perf_counter()
        except ValueError as error:
            if not self.selections:
                raise
            warnings.warn(
                f"Epoch {epoch} goes on with the selection of epoch {self.selections[-1].epoch}: "
                f"{error}",
                stacklevel=2,
            )
            self._selected_at = epoch
            return
        self.model.set_mask(selection.mask)
        self._selected_at = epoch
        self.selections.append(
            SelectionRecord(
                epoch=epoch,
                rho=rho,
                selection=selection,
                importance=importance,
                predicted_ratio=selection.time / self._current.t_full,
                seconds_importance=evaluated - started,
                seconds_solve=solved - evaluated,
            )
        )

    def _reprofile(self, epoch: int) -> None:
        """Measure the device as it is now; the first time also traces the two steps measured."""
        started = time.perf_counter()
        traced = self._profiler is not None
        if self._profiler is None:
            self._profiler = Profiler(self.model, *self.probe.batch(self.profile.batch_size))
        self._current = self._profiler.measure(repeats=_REPROFILE_REPEATS)
        seconds = time.perf_counter() - started
        self.profiles.append(ProfileRecord(epoch, self._current, seconds, not traced))

    def _evaluate(self) -> np.ndarray:
        """Importance on a fresh probe, in micro-batches of the training's size."""
        x, y = self.probe.draw()
        self.profile.check_data(
            batch_size=self.probe.batch_size,
            input_shape=[tuple(part.shape[1:]) for part in tf.nest.flatten(x)],
        )
        options = {}
        if self.profile.batch_size and "micro_batch_size" in _parameters(self.importance):
            options["micro_batch_size"] = self.profile.batch_size
        return np.asarray(self.importance(self.model, x, y, **options), np.float64)


class _Probe:
    """Samples for the importance, other ones at each draw."""

    def __init__(self, source: Any, size: int, seed: int) -> None:
        self.source = source
        self.size = size
        self._generator = np.random.default_rng(seed)
        self._batches: Iterator[Any] | None = None
        self.batch_size: int | None = None  # of the dataset, once a batch was drawn
        if not isinstance(source, tf.data.Dataset) and not (
            isinstance(source, (tuple, list)) and len(source) == 2
        ):
            raise TypeError(
                "`probe` must be a batched tf.data.Dataset of (x, y) or a tuple of arrays (x, y). "
                f"Received: {_kind(source)}. Use the training data: probe=train."
            )

    def draw(self) -> tuple[Any, Any]:
        """`size` samples, or all there are."""
        if not isinstance(self.source, tf.data.Dataset):
            return self._draw_rows(*self.source)
        if self._batches is None:
            self._batches = iter(self.source.repeat())
        parts: list[Any] = []
        count = 0
        while count < self.size:
            batch = next(self._batches, None)
            if batch is None:
                raise ValueError(
                    "`probe` must yield batches. Received: an empty dataset. Look at its source."
                )
            x, y, _ = tf.keras.utils.unpack_x_y_sample_weight(batch)
            if y is None or any(part.shape.rank == 0 for part in tf.nest.flatten(y)):
                raise ValueError(
                    "`probe` must yield batches of (x, y). Received: "
                    f"{self.source.element_spec}. Use dataset.batch(batch_size)."
                )
            parts.append((x, y))
            size = int(tf.nest.flatten(x)[0].shape[0])
            self.batch_size = max(size, self.batch_size or 0)  # the last batch may be smaller
            count += size
        joined = tf.nest.map_structure(lambda *p: tf.concat(p, axis=0)[: self.size], *parts)
        return joined[0], joined[1]

    def batch(self, size: int) -> tuple[Any, Any]:
        """The first `size` samples, or the first batch of a dataset if `size` is 0."""
        if isinstance(self.source, tf.data.Dataset):
            whole = self.source.unbatch().batch(size) if size else self.source
            x, y, _ = tf.keras.utils.unpack_x_y_sample_weight(next(iter(whole)))
            return x, y
        return tuple(tf.nest.map_structure(lambda part: part[: size or None], self.source))

    def _draw_rows(self, x: Any, y: Any) -> tuple[Any, Any]:
        count = len(tf.nest.flatten(x)[0])
        counts = {len(part) for part in tf.nest.flatten((x, y))}
        if count == 0 or len(counts) > 1:
            raise ValueError(
                "`probe` must hold samples, as many in x as in y. Received: arrays of length "
                f"{', '.join(map(str, sorted(counts)))}."
            )
        rows = self._generator.permutation(count)[: self.size]
        return tf.nest.map_structure(lambda part: tf.gather(part, rows), (x, y))


def _kind(source: Any) -> str:
    """What was given for a probe, in words."""
    length = f" of length {len(source)}" if isinstance(source, (tuple, list)) else ""
    return type(source).__name__ + length


def _parameters(function: Callable[..., Any]) -> set[str]:
    """Names of the parameters of a function, as far as it tells."""
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()

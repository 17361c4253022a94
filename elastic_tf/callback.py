"""The callback that makes `model.fit` elastic: every few epochs it chooses what to train."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.backup.recovery import Backup
from elastic_tf.budget import opening
from elastic_tf.budget.deadline import Deadline
from elastic_tf.budget.ratio import RatioControl, Rho, rho_at
from elastic_tf.engine import fit_data
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.importance import measures as importances
from elastic_tf.importance.probe import Probe
from elastic_tf.selection import records
from elastic_tf.selection.records import ProfileRecord, SelectionRecord
from elastic_tf.timing.profile import TimingProfile

_RHO = 0.5  # unless `rho` or `deadline` says otherwise


class ElasticCallback(tf.keras.callbacks.Callback):
    """Trains, at any time, the tensors that lower the loss most within `rho` of the step time.

    Before the first epoch and then every `interval` epochs it draws a probe, evaluates the
    importance of every tensor, selects, and hands the mask to the model. When training ends the
    model's mask is what it was before.

    In between it times the steps, without tracing, validation and waiting for data, and now and
    then a full step beside them, of which nothing stays behind. Where the achieved ratio leaves the
    band around `rho`, it selects anew at once, in the middle of an epoch too, by the importance
    evaluated last, and asks the selector for what will really achieve `rho`.

    With a deadline, `rho` follows from the time left at every selection. Between two selections
    some steps train the cheapest mask alone, as many as it takes to end on time; where that would
    be too many, or the training would end much too early, it is planned anew. If nothing else
    helps, training stops a few steps early rather than late, and says so. Where there is time for
    everything, `rho` is 1: all tensors that are expected to lower the loss are trained, and `fit`
    ends before the deadline. What the first selection takes is known only afterwards: a deadline
    that is over by then is refused, and one that leaves too little for all steps gets a warning. So
    does a `fit` that ends late, as it may where its first validation takes long.

    Args:
        profile: times measured on this device by `profile_model`.
        rho: allowed step time / full step time in (0, 1]; or a schedule `epoch -> rho`. 0.5 unless
            there is a deadline.
        interval: epochs between two selections; 3 keeps 80 % of the importance (paper, Fig. 7a).
            With a deadline more, where selections would take over a fifth of the time left.
        probe: samples on which importance is evaluated: the training data as a `tf.data.Dataset`
            in batches of the size that was profiled, or `(x, y)` arrays; with sample weights as a
            third part if training has them.
        probe_size: samples drawn for each selection.
        gradient_probe: samples that the gradient in the importance is taken on, while the update
            comes from `probe`; validation data select what helps there. None: `probe` alone.
        importance: function `(model, x, y) -> array (N,)`; see `elastic_tf.importance`.
        smoothing: weight of the importance so far in that of a selection, in [0, 1).
        required: True where a tensor is trained whatever its importance; bool, shape (N,).
        deadline: seconds that the whole `fit` may take, everything included; instead of `rho`.
        control: part of the training time that keeping the ratio may cost: tracing and timing full
            steps, tracing anew between two selections. A training too short to afford it goes on
            uncontrolled, and so does one with 0. A deadline needs no full step.
        band: relative distance from `rho` within which the achieved ratio counts as kept.
        reprofile_every: epochs after which the device is profiled again, for devices that throttle;
            None never does (Sec. 5.4). Takes about five steps; `profiles` holds the results.
        log_dir: directory for TensorBoard: ratios, similarity of the importance, seconds, and a
            picture of what was trained when.
        backup: where the training is backed up; the same `fit` goes on from the last backup if it
            is interrupted, with the same results (see "Power cuts" in keras.md). None keeps none.
        verbose: 1 prints a line for each selection.
        bar: whether Keras's progress bar shows `rho` and the step ratio achieved; while none is
            measured, the predicted one.
        seed: of the draws from arrays.
        clock: seconds now; another one is for tests.

    Attributes:
        selections: a `SelectionRecord` for each selection of the last `fit`.
        profiles: a `ProfileRecord` for each profile made in it.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 3.
    """

    def __init__(
        self,
        profile: TimingProfile,
        rho: Rho | None = None,
        interval: int = 3,
        probe: tf.data.Dataset | tuple[Any, ...] | None = None,
        *,
        probe_size: int = 64,
        gradient_probe: tf.data.Dataset | tuple[Any, ...] | None = None,
        importance: Callable[..., np.ndarray] = importances.loss_decrease,
        smoothing: float = 0.0,
        required: np.ndarray | None = None,
        deadline: float | None = None,
        control: float = 0.05,
        band: float = 0.05,
        reprofile_every: int | None = None,
        log_dir: str | Path | None = None,
        backup: Backup | None = None,
        verbose: int = 0,
        bar: bool = True,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__()
        hint = "Measure one with elastic_tf.profile_model, or read one with TimingProfile.load."
        arguments.instance("profile", profile, TimingProfile, "a TimingProfile", hint=hint)
        probe_size = arguments.count("probe_size", probe_size)
        seed = arguments.count("seed", seed, least=0, most=2**64 - 1)
        if reprofile_every is not None:
            reprofile_every = arguments.count("reprofile_every", reprofile_every)
        arguments.function("importance", importance, hint="See elastic_tf.importance.")
        arguments.function("clock", clock, hint="It returns the seconds now.")
        if required is not None:
            hint = "elastic_tf.zoo.head_tensors(model) makes one."
            required = arguments.mask("required", required, profile.count, hint=hint)
        if log_dir is not None:
            arguments.path("log_dir", log_dir)
        if rho is not None and deadline is not None:
            raise ValueError(
                "Give `rho` or `deadline`, not both: with a deadline, rho follows from the time "
                f"left. Received: rho={rho!r}, deadline={deadline!r}."
            )
        self.rho = _RHO if rho is None else rho
        if not callable(self.rho):
            rho_at(self.rho, 0)
        self.profile = profile
        self.interval = arguments.count("interval", interval)
        self.probe = Probe(probe, probe_size, seed)
        self.gradient_probe = (
            None
            if gradient_probe is None
            else Probe(gradient_probe, probe_size, seed, name="gradient_probe")
        )
        self.importance = importance
        self.smoothing = arguments.number("smoothing", smoothing, low=0.0, high=1.0, below=True)
        self.required = required
        self.deadline = None if deadline is None else Deadline(deadline)
        self.control = arguments.number("control", control, low=0.0, high=1.0, below=True)
        self.band = band
        self.reprofile_every = reprofile_every
        self.log_dir = log_dir
        if backup is not None:
            arguments.instance("backup", backup, Backup, "et.Backup(directory)")
        self.backup = backup
        self.verbose = arguments.count("verbose", verbose, least=0)
        self.bar_ratios = self._bar_ratios if arguments.flag("bar", bar) else None
        self.selections: list[SelectionRecord] = []
        self.profiles: list[ProfileRecord] = []
        self._clock = clock
        self._has_ended = False  # a `fit` with this callback
        RatioControl(band=band)  # refuses rubbish
        opening.worth(self)

    def summary(self) -> str:
        """A table of the selections: what was asked for, predicted, achieved, and what it took."""
        return records.table(self.selections)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Refuse what cannot be served; forget an earlier `fit`."""
        if not isinstance(self.model, ElasticMixin):
            raise TypeError(
                f"ElasticCallback serves elastic models. Received: {type(self.model).__name__}. "
                "Make one with elastic_tf.ElasticModel.from_model(model) and compile it."
            )
        opening.check_replicas(
            self.model,
            deadline=self.deadline is not None,
            reprofile=self.reprofile_every is not None,
        )
        self._register()
        self.profile.check(
            self.model,
            batch_size=opening.batch_size(self.model),
            input_shape=fit_data.sample_shapes(self.model._elastic.data),
        )
        self._course = opening.course(self, self._clock, is_again=self._has_ended)
        self.selections, self.profiles = self._course.selections, self._course.profiles
        self._course.begin()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Profile and select anew where their intervals have passed."""
        self._course.epoch_begins(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep what the step may have to give back."""
        self._course.step_begins(batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Measure; select anew where the budget is not kept; back up."""
        self._course.steps_made(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note what was measured."""
        self._course.epoch_ends(epoch, logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Close what was opened; `fit` gives the model its plan and its train function back."""
        self._course.release_steps()
        self._has_ended = True
        self._course.end()
        self.model._elastic.finished = self._course.ended

    def _register(self) -> None:
        """One callback for one model: `fit` has none at its beginning."""
        if self.model._elastic.callback is not None:
            raise ValueError(
                "A model is trained with one ElasticCallback. Received: two of them for "
                f"'{self.model.name}'. Leave one out."
            )
        self.model._elastic.callback = self

    def _bar_ratios(self) -> dict[str, float | None]:
        hidden = dict.fromkeys((*records.LOGGED, "achieved", "predicted"))
        return {**hidden, **self._course.ratios()}

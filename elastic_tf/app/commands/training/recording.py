"""What a training leaves behind, epoch by epoch: seconds, masks, memory, energy."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf.app.runs.run import Run, peak_memory_bytes
from elastic_tf.files.json_form import to_ranges
from elastic_tf.memory import energy
from elastic_tf.plan import Plan

_TRACED = 3.0  # times the median of an epoch: a step that took longer was traced


class TrainingClock(tf.keras.callbacks.Callback):
    """Counts the seconds of training: selection, tracing and waiting for data, not evaluation.

    Stands first among the callbacks, so that the work of the others is counted. `epochs` has of
    each epoch "seconds", without evaluation; "overhead_seconds", the part of them that is no
    training step; "evaluation_seconds"; and "steps".
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[dict[str, Any]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self._started = self.model._elastic.fit_started  # what is computed before the first epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._evaluating = 0.0
        self._calls: list[float] = []
        self._begun, self._started = self._started or time.perf_counter(), None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._called = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._calls.append(time.perf_counter() - self._called)

    def on_test_begin(self, logs: Any = None) -> None:
        self._tested = time.perf_counter()

    def on_test_end(self, logs: Any = None) -> None:
        self._evaluating += time.perf_counter() - self._tested

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        seconds = time.perf_counter() - self._begun - self._evaluating
        in_steps = np.minimum(self._calls, _TRACED * np.median(self._calls)).sum()
        self.epochs.append(
            {
                "seconds": seconds,
                "overhead_seconds": max(0.0, seconds - float(in_steps)),
                "evaluation_seconds": self._evaluating,
                "steps": len(self._calls),
            }
        )

    def total(self, key: str) -> Any:
        """Over all epochs."""
        return sum(epoch[key] for epoch in self.epochs)


def said_of(seconds: float, overhead_seconds: float) -> str:
    """What of a training's seconds the steps themselves did not take."""
    return (
        f"{overhead_seconds:.1f} of its {seconds:.1f} s went into selecting, tracing, timing and "
        "waiting for images, the rest into steps."
    )


class Recorder(tf.keras.callbacks.Callback):
    """Writes each epoch and selection into the run's directory as soon as it is there.

    Stands last among the callbacks, and `clock` first. What it does itself is neither in the
    seconds nor in the energy; evaluation is in the energy. `first` is written with the first epoch
    of the run.
    """

    def __init__(
        self,
        run: Run,
        clock: TrainingClock,
        elastic: et.ElasticCallback | None = None,
        *,
        sensor: energy.Meter | None = None,
        **first: Any,
    ) -> None:
        super().__init__()
        self._run, self._clock, self._elastic, self._first = run, clock, elastic, first
        self._meter = sensor
        self._joules: float | None = None
        self._written = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if self._meter is not None:
            self._meter.start()
            self._joules = self._meter.joules()

    def on_train_end(self, logs: Any = None) -> None:
        if self._meter is not None:
            self._meter.stop()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        joules: Any = "no sensor"
        if self._meter is not None:
            now = self._meter.joules()
            joules = None if now is None or self._joules is None else now - self._joules
        plan, measured = self.model.plan, self._clock.epochs[-1]
        rest = {} if self._run.history else self._first
        if plan != Plan.from_mask(plan.mask):
            rest = {**rest, **plan.to_json()}
        self._run.append_epoch(
            {
                "epoch": epoch + 1,
                **(logs or {}),
                **measured,
                "seconds_per_step": measured["seconds"] / measured["steps"],
                "trained": to_ranges(plan.mask),
                "tensors": len(plan),
                "rebuilds": len(getattr(self.model, "removed", ())),  # by PruneTrain
                "peak_memory_bytes": peak_memory_bytes(),
                "energy_joules": joules,
                **rest,
            }
        )
        # a training that goes on after a crash brings its present selection with it
        written = [(item["epoch"], item["step"]) for item in self._run.selections]
        made = self._elastic.selections if self._elastic else []
        for record in made[self._written :]:
            if (record.epoch + 1, record.step) not in written:
                self._run.append_selection(record)
        self._written = len(made)
        if self._meter is not None:
            self._joules = self._meter.joules()

"""What a training leaves behind, epoch by epoch: seconds, plans, memory; and their sums."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.app import runs
from elastic_tf.files import to_ranges
from elastic_tf.plan import Plan


class Recorder(tf.keras.callbacks.Callback):
    """Writes each epoch into the run's directory as soon as it is there.

    Stands first among the callbacks: "seconds" are those of training, with selection, tracing and
    waiting for data, without "evaluation_seconds". `first` is written with the run's first epoch.
    """

    def __init__(self, run: runs.Run, **first: Any) -> None:
        super().__init__()
        self._run, self._first = run, first

    def on_train_begin(self, logs: Any = None) -> None:
        self._started = self.model._elastic.fit_started  # what is computed before the first epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._run.go_back(epoch)  # to a backup
        self._evaluating, self._steps = 0.0, 0
        self._begun, self._started = self._started or time.perf_counter(), None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1

    def on_test_begin(self, logs: Any = None) -> None:
        self._tested = time.perf_counter()

    def on_test_end(self, logs: Any = None) -> None:
        self._evaluating += time.perf_counter() - self._tested

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        plan = self.model.plan
        rest = {} if self._run.history else self._first
        if plan != Plan.from_mask(plan.mask):
            rest = {**rest, **plan.to_json()}
        self._run.append_epoch(
            {
                "epoch": epoch + 1,
                **(logs or {}),
                "seconds": time.perf_counter() - self._begun - self._evaluating,
                "evaluation_seconds": self._evaluating,
                "steps": self._steps,
                "trained": to_ranges(plan.mask),
                "tensors": len(plan),
                "peak_memory_bytes": runs.peak_memory_bytes(),
                **rest,
            }
        )


class Best(tf.keras.callbacks.EarlyStopping):
    """Keeps the weights that validation images favour, in backups too; never stops."""

    def __init__(self, accuracy: float, weights: list[np.ndarray]) -> None:
        super().__init__("val_accuracy")
        self.best, self.best_epoch, self.best_weights = accuracy, 0, weights

    def on_train_begin(self, logs: Any = None) -> None:
        """What is known before the first epoch stays."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        found = float((logs or {})["val_accuracy"])
        if found > self.best:
            self.best, self.best_epoch = found, epoch + 1
            self.best_weights = self.model.get_weights()

    def on_train_end(self, logs: Any = None) -> None:
        """The last weights stay in the model."""


def summary(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums of the epochs of a run."""
    seconds, steps, evaluation = (
        sum(epoch[key] for epoch in history) for key in ("seconds", "steps", "evaluation_seconds")
    )
    return {
        "accuracy": history[-1]["val_accuracy"],
        "loss": history[-1]["val_loss"],
        "training_seconds": seconds,
        "seconds_with_evaluation": seconds + evaluation,
        "seconds_per_step": seconds / steps,
        "steps": steps,
        "epochs": len(history),
        "peak_memory_bytes": max(epoch["peak_memory_bytes"] for epoch in history),
    }

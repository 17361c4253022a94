"""What every experiment shares: the clock, the record of a run, the preparation of a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf import energy
from elastic_tf.flops import Flops
from elastic_tf.runs import Run, peak_memory_bytes
from elastic_tf.stopwatch import measure_ratios


class TrainingClock(tf.keras.callbacks.Callback):
    """Counts the seconds of training: selection, tracing and waiting for data, not evaluation.

    Stands first among the callbacks, so that the work of the others is counted.

    Attributes:
        seconds: of each epoch.
        steps: of each epoch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.steps: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._elapsed, self._steps = 0.0, 0
        self._since = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._steps = batch + 1

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._elapsed += time.perf_counter() - self._since

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._since = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.seconds.append(self._elapsed + time.perf_counter() - self._since)
        self.steps.append(self._steps)


class Recorder(tf.keras.callbacks.Callback):
    """Writes each epoch and selection into the run's directory as soon as it is there.

    Stands last among the callbacks. What it does itself is neither in the seconds nor in the
    energy; evaluation is in the energy.

    Args:
        run: written to.
        clock: the first of the callbacks.
        elastic: whose selections are written.
        flops: operations of a step under a mask; None leaves them out.
        sensor: of energy; None: there is none.
    """

    def __init__(
        self,
        run: Run,
        clock: TrainingClock,
        elastic: et.ElasticCallback | None = None,
        *,
        flops: Callable[[np.ndarray], Flops] | None = None,
        sensor: energy.Sensor | None = None,
    ) -> None:
        super().__init__()
        self.run = run
        self.clock = clock
        self.elastic = elastic
        self._flops = flops
        self._meter = None if sensor is None else energy.Meter(sensor)
        self._joules: float | None = None
        self._written = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._meter is not None:
            self._meter.start()
            self._joules = self._meter.joules()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._meter is not None:
            self._meter.stop()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        seconds, steps = self.clock.seconds[-1], self.clock.steps[-1]
        joules = self._energy()
        self.run.append_epoch(
            {
                "epoch": epoch,
                **(logs or {}),
                "seconds": seconds,
                "seconds_per_step": seconds / max(steps, 1),
                "peak_memory_bytes": peak_memory_bytes(),
                "energy_joules": joules,
                **self._step_flops(),
            }
        )
        for record in self.elastic.selections[self._written :] if self.elastic else ():
            # a training that goes on after a crash brings its present selection with it
            written = [(item["epoch"], item["step"]) for item in self.run.selections]
            if (record.epoch, record.step) not in written:
                self.run.append_selection(record)
            self._written += 1
        if self._meter is not None:
            self._joules = self._meter.joules()

    def _energy(self) -> float | str | None:
        """Joules of the epoch; None if the sensor failed."""
        if self._meter is None:
            return "no sensor"
        now = self._meter.joules()
        return None if now is None or self._joules is None else now - self._joules

    def _step_flops(self) -> dict[str, Any]:
        """Operations of a step under the mask at the epoch's end."""
        if self._flops is None:
            return {}
        flops = self._flops(self.model.mask)
        parts = {name: getattr(flops, name) for name in ("forward", "backward", "update")}
        return {"flops_per_step": {**parts, "uncounted": flops.uncounted}}


def loss() -> tf.keras.losses.Loss:
    """Cross-entropy of the logits that the zoo's models return."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(
    model: tf.keras.Model, optimizer: str, learning_rate: Any, *, xla: bool = False
) -> et.ElasticModel:
    """An elastic model that shares the weights of `model`, with a new optimizer."""
    elastic = et.ElasticModel.from_model(model)
    elastic.compile(
        et.optimizers.by_name(optimizer, learning_rate),
        loss(),
        metrics=["accuracy"],
        jit_compile=xla,
    )
    return elastic


def rate(schedule: str, learning_rate: float, steps: int) -> Any:
    """The learning rate over a run of `steps` steps: "cosine" to zero, or "constant"."""
    if schedule == "constant":
        return learning_rate
    return tf.keras.optimizers.schedules.CosineDecay(learning_rate, max(steps, 1))


def warm_head(
    model: tf.keras.Model,
    train: tf.data.Dataset,
    *,
    epochs: int,
    learning_rate: float,
    verbose: Any = 0,
) -> float:
    """Train the head alone with Adam, for a fresh head makes full training diverge.

    Returns:
        Seconds that it took.
    """
    if not epochs:
        return 0.0
    elastic = compiled(model, "adam", learning_rate)
    elastic.set_mask(et.zoo.head_tensors(elastic))
    clock = TrainingClock()
    elastic.fit(train, epochs=epochs, verbose=verbose, callbacks=[clock])
    return sum(clock.seconds)


def achieved_ratio(
    model: et.ElasticModel, batch: tuple[Any, Any], masks: list[np.ndarray], *, repeats: int = 10
) -> float:
    """Mean step time under the masks / full step time, each timed in turn with the full step."""
    distinct = {mask.tobytes(): mask for mask in masks}
    measured = measure_ratios(model, *batch, list(distinct.values()), repeats=repeats)
    ratios = dict(zip(distinct, measured))
    return float(np.mean([ratios[mask.tobytes()] for mask in masks]))


def row(
    method: str, history: list[dict[str, Any]], clock: TrainingClock, ratio: float
) -> dict[str, Any]:
    """One line of the table that a run ends with."""
    return {
        "method": method,
        "accuracy": history[-1]["val_accuracy"],
        "training_seconds": sum(clock.seconds),
        "seconds_per_step": sum(clock.seconds) / max(sum(clock.steps), 1),
        "achieved_ratio": ratio,
    }


class Turns:
    """Lets several `fit`s run side by side, one epoch of each in turn.

    What is compared then meets the same machine: its speed drifts by a factor of two in minutes.
    Each `fit` runs in a thread of its own and waits for its turn before every epoch.
    """

    def __init__(self) -> None:
        self._waiting: list[str] = []
        self._changed = threading.Condition()
        self._errors: list[BaseException] = []

    def callbacks(self, name: str) -> tuple[tf.keras.callbacks.Callback, ...]:
        """The first and the last callback of the `fit` of that name."""

        def wait(epoch: int, logs: Any) -> None:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting[0] == name or self._errors)
                if self._errors:
                    raise RuntimeError(f"'{name}' stops because another run failed.")

        def hand_on(epoch: int, logs: Any) -> None:
            with self._changed:
                self._waiting.append(self._waiting.pop(0))
                self._changed.notify_all()

        make = tf.keras.callbacks.LambdaCallback
        return make(on_epoch_begin=wait), make(on_epoch_end=hand_on)

    def run(self, fits: dict[str, Callable[[], Any]]) -> None:
        """Run them all; the first error ends all and is raised."""
        self._waiting = list(fits)
        # daemons: an interrupt ends the program, not only the wait for them
        threads = [
            threading.Thread(target=self._one, args=item, daemon=True) for item in fits.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _one(self, name: str, fit: Callable[[], Any]) -> None:
        try:
            fit()
        except BaseException as error:
            self._errors.append(error)
        with self._changed:
            if name in self._waiting:
                self._waiting.remove(name)
            self._changed.notify_all()

"""What trainings and experiments share: preparing a model, step ratios, fits side by side."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf.commands.training.recording import TrainingClock
from elastic_tf.timing.stopwatch import measure_ratios


def loss(*, one_hot: bool = False) -> tf.keras.losses.Loss:
    """Cross-entropy of the logits that the zoo's models return."""
    if one_hot:
        return tf.keras.losses.CategoricalCrossentropy(from_logits=True)
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(
    model: tf.keras.Model,
    optimizer: str,
    learning_rate: Any,
    *,
    xla: bool = False,
    one_hot: bool = False,
) -> et.ElasticModel:
    """`model` if it is elastic, or one that shares its weights; with a new optimizer."""
    is_elastic = isinstance(model, et.ElasticMixin)
    elastic = model if is_elastic else et.ElasticModel.from_model(model)
    elastic.compile(
        et.optimizers.by_name(optimizer, learning_rate),
        loss(one_hot=one_hot),
        metrics=["accuracy"],
        jit_compile=xla,
    )
    return elastic


def rate(schedule: str, learning_rate: float, steps: int, *, warm_up: int = 0) -> Any:
    """The learning rate over a run of `steps` steps: "cosine" to zero, or "constant".

    Args:
        schedule: one of the two.
        learning_rate: the largest one.
        steps: of the run.
        warm_up: first steps, in which a cosine rises to it linearly; never from zero, where no
            tensor would have any importance.
    """
    if schedule == "constant":
        return learning_rate
    cosine = tf.keras.optimizers.schedules.CosineDecay
    if not warm_up:
        return cosine(learning_rate, max(steps, 1))
    return cosine(
        learning_rate / warm_up,
        max(steps - warm_up, 1),
        warmup_target=learning_rate,
        warmup_steps=warm_up,
    )


def verbosity(*, quiet: bool) -> int:
    """What Keras shows: 0, nothing; 1, a bar; 2, a line per epoch.

    A file keeps every redraw of a bar, so that one is shown by terminals and notebooks alone.
    """
    if quiet:
        return 0
    return 1 if sys.stdout.isatty() or "ipykernel" in sys.modules else 2


def warm_head(
    model: tf.keras.Model,
    train: tf.data.Dataset,
    *,
    epochs: int,
    learning_rate: float,
    one_hot: bool = False,
    verbose: Any = 0,
) -> float:
    """Train the head alone with Adam, for a fresh head makes full training diverge.

    Returns:
        Seconds that it took.
    """
    if not epochs:
        return 0.0
    elastic = compiled(model, "adam", learning_rate, one_hot=one_hot)
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


class Turns:
    """Lets several calls of `fit` run side by side, one epoch of each in turn.

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

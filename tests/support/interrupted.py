"""A small elastic training that can be killed at any moment, and what it comes to in the end."""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf
from networks import CLASSES, MORE_OPTIMIZERS, L, crossentropy

from elastic_tf import stack
from elastic_tf.choose import importance
from elastic_tf.train import optimizers, saved

SAMPLES, FEATURES, BATCH = 20, 6, 4
STEPS = SAMPLES // BATCH
EPOCHS = 4
PROFILE = et.TimingProfile.from_chain(t_dw=np.ones(8), t_dy=np.ones(8), t_forward=5.0)
# Nothing to trace, and an optimizer of few ops.
CHEAP = {"importance": et.importance.weight_magnitude, "optimizer": "sgd"}

# Where a training can be killed beside its steps: what is replaced, and its name.
MOMENTS = {
    "importance": (importance, "_finite"),  # once for each evaluation
    "tracing": (et.ElasticMixin, "gradients"),  # once for each traced step
    "array": (saved, "_add"),  # once for each array that is written
    "flush": (os, "fsync"),
    "rename": (os, "replace"),
    "data": (stack.fit, "_skip"),
}


class Kill(BaseException):
    """Stands for a power cut within a process: nothing catches it."""


class KillAt(tf.keras.callbacks.Callback):
    """Raises `Kill` in a method, `on_train_batch_end` say, at an epoch and a batch."""

    def __init__(self, method: str, epoch: int | None = None, batch: int | None = None) -> None:
        super().__init__()
        self._epoch = 0

        def stop(number: int | dict[str, Any] | None = None, logs: Any = None) -> None:
            if method.startswith("on_epoch"):
                self._epoch = number
            if epoch in (None, self._epoch) and (batch is None or number == batch):
                raise Kill

        setattr(self, method, stop)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch


def at_call(count: int, act: Callable[[], None], place: Any, name: str) -> Callable[..., Any]:
    """The function `name` of `place`, which calls `act` before it is called the count-th time."""
    original, calls = getattr(place, name), []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == count:
            act()
        return original(*args, **kwargs)

    return counted


def kill() -> None:
    raise Kill


def arrays() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    return x, rng.integers(0, CLASSES, SAMPLES)


def untuned(data: tf.data.Dataset) -> tf.data.Dataset:
    """TensorFlow 2.15 may wait a minute for its tuning thread at each end."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)


def sliced() -> tf.data.Dataset:
    """Samples, one by one."""
    return untuned(tf.data.Dataset.from_tensor_slices(arrays()))


def shuffled() -> tf.data.Dataset:
    """In another order at each pass."""
    return sliced().shuffle(SAMPLES, seed=3).batch(BATCH)


def network(dropout: float) -> tf.keras.Model:
    """Dense layers with batch normalisation and dropout: 8 tensors."""
    inputs = L.Input((FEATURES,))
    x = L.Dense(8, "relu", name="one")(inputs)
    x = L.BatchNormalization(name="norm")(x)
    x = L.Dropout(dropout, name="drop")(x)
    x = L.Dense(8, "relu", name="two")(x)
    return tf.keras.Model(inputs, L.Dense(CLASSES, name="head")(x))


def train(
    folder: Path | None,
    *callbacks: Any,
    data: Any = None,
    optimizer: str = "adam",
    compiled: dict[str, Any] | None = None,
    fitted: dict[str, Any] | None = None,
    dropout: float = 0.3,
    backup: dict[str, Any] | None = None,
    loss: Any = None,
    first: Sequence[Any] = (),
    **options: Any,
) -> dict[str, Any]:
    """One training as a new process makes it; all that must be the same after a kill."""
    tf.keras.utils.set_random_seed(0)
    model = et.ElasticModel.from_model(network(dropout))
    options_of_compile = {"metrics": ["accuracy"], **(compiled or {})}
    model.compile(MORE_OPTIMIZERS[optimizer](), loss or crossentropy(), **options_of_compile)
    given = {"x": shuffled()} if data is None else data()
    probe = given["x"] if data is None else shuffled()
    callback = et.ElasticCallback(
        PROFILE,
        **{
            "rho": 0.6,
            "interval": 2,
            "probe": et.Probe(probe, size=8),
            "control": et.Control(share=0.0),
            "backup": folder and et.Backup(folder, **{"every": 2, **(backup or {})}),
            **options,
        },
    )
    validation = sliced().batch(BATCH)
    history = model.fit(
        **given,
        **{"epochs": EPOCHS, "verbose": 0, "validation_data": validation, **(fitted or {})},
        callbacks=[*first, callback, *callbacks],
    )
    return {
        "variables": digests(model),
        "history": history.history,
        "epochs": history.epoch,
        "selections": [
            [r.epoch, r.step, r.rho, r.mask.tolist(), r.importance.tolist()]
            for r in callback.selections
        ],
    }


def digests(model: Any) -> list[str]:
    """Of every weight, buffer, slot and step count."""
    found = [*model.weights, *optimizers.state(model.optimizer)]
    return [hashlib.sha256(variable.numpy().tobytes()).hexdigest()[:16] for variable in found]

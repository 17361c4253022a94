"""Values that are no numbers, in the loss or in the gradients of one step."""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from faults.children import counted
from interrupted import EPOCHS, STEPS, train
from networks import crossentropy

import elastic_tf as et

SPOILED = ("NaN in the loss", "infinity in the loss", "NaN in the gradients alone")
_LOST = {"restore": "steps since the last backup"}
POLICIES = ("restore", "stop", "ignore")


def rows(kills: int, jobs: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Try each policy a hundredth as often as `kills` says, and at least once with each value."""
    times = max(kills // 100, 1)
    for policy in POLICIES:
        yield _spoiled(policy, times, rng)


def _spoiled(policy: str, times: int, rng: random.Random) -> dict[str, Any]:
    """Steps that spoil loss or weights, in trainings with one policy."""
    kinds = iter(SPOILED * times)

    def trial(rng: random.Random) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return _with(policy, SPOILED.index(next(kinds)) + 1, Path(folder), rng)

    name = f"NaN or infinity in a step, nan={policy}"
    return counted(name, 3 * times, rng, trial, lost=_LOST.get(policy, "nothing"))


class Spoil(tf.keras.callbacks.Callback):
    """Spoils one step; the loss looks at `kind`."""

    def __init__(self, kind: int, at: tuple[int, int]) -> None:
        super().__init__()
        self.kind = tf.Variable(0, trainable=False)
        self._chosen, self._at, self._epoch = kind, at, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.kind.assign(self._chosen if (self._epoch, batch) == self._at else 0)


def _with(policy: str, kind: int, folder: Path, rng: random.Random) -> str:
    """What a training comes to in which one step is spoiled, in a word."""
    at = (rng.randint(1, EPOCHS - 1), rng.randint(0, STEPS - 1))
    spoil = Spoil(kind, at)
    usual = crossentropy()

    def loss(y_true: Any, y_pred: Any) -> Any:
        found = usual(y_true, y_pred)
        apart = y_pred - tf.stop_gradient(y_pred)
        root = tf.sqrt(tf.reduce_sum(tf.square(apart)))  # nought, but its gradient is 0 / 0
        return tf.switch_case(
            spoil.kind.read_value(),
            [
                lambda: found,
                lambda: found * np.float32(np.nan),
                lambda: found * np.float32(np.inf),
                lambda: found + root,
            ],
        )

    options = {
        "importance": et.importance.weight_magnitude,
        "loss": loss,
        "backup": {"nan": policy},
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            outcome = train(folder, first=[spoil], **options)
        except FloatingPointError as error:
            is_named = "must be finite. Received: " in str(error)
            return (
                "an error that says where" if is_named and policy == "stop" else f"not as: {error}"
            )
    said = " ".join(str(one.message) for one in caught)
    rate = float(spoil.model.optimizer.learning_rate)
    is_finite = all(np.isfinite(weight).all() for weight in spoil.model.get_weights())
    if policy == "restore" and is_finite and rate == np.float32(0.005) and "go back to" in said:
        return "back to the last backup, half the learning rate, to the end"
    if policy == "ignore" and not is_finite and not np.isfinite(outcome["history"]["loss"][-1]):
        return "to the end without numbers"
    return f"not as expected: {is_finite=} {rate=} {said!r}"

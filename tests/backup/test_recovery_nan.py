"""A training with backups in which a loss or a weight is no number any more."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from interrupted import CHEAP, STEPS, train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("deterministic")]


class Poison(tf.keras.callbacks.Callback):
    """Makes a weight NaN at the beginning of a step, in so many epochs."""

    def __init__(self, *epochs):
        super().__init__()
        self.epochs = epochs

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch in self.epochs and batch == 3:
            bias = self.model.trainable_variables[-1]
            bias.assign(bias * np.nan)


def test_nan_goes_back_to_the_last_good_weights_once(tmp_path):
    poison = Poison(1)
    with pytest.warns(
        UserWarning, match=r"loss=nan in epoch 1 .* back to epoch 1, step 2; .*0.005"
    ):
        outcome = train(tmp_path, poison, **CHEAP)
    assert np.isfinite(outcome["history"]["loss"]).all()
    assert float(poison.model.optimizer.learning_rate) == np.float32(0.005)


def test_nan_stops_the_training_the_second_time(tmp_path):
    with pytest.warns(UserWarning, match="halved"):
        with pytest.raises(FloatingPointError, match="loss=nan in epoch 2 .*after all that could"):
            train(tmp_path, Poison(1, 2), **CHEAP)


@pytest.mark.parametrize("options", [{"nan": "stop"}, {"optimizer": "schedule"}])
def test_nan_stops_the_training_where_nothing_can_be_lowered(tmp_path, options):
    with pytest.raises(FloatingPointError, match="loss=nan in epoch 1 after 4 steps"):
        train(tmp_path, Poison(1), **CHEAP, **options)


class BadBatch(Poison):
    """Spoils what a step computes, not what was there before it."""

    def on_train_batch_begin(self, batch, logs=None):
        if self.epoch in self.epochs and batch in (0, 3):
            self.is_bad = True

    def on_train_batch_end(self, batch, logs=None):
        if self.__dict__.pop("is_bad", False):
            loss = next(m for m in self.model.metrics if m.name == "loss")
            for variable in (loss.total, self.model.trainable_variables[-1]):
                variable.assign(variable * np.nan)
            logs["loss"] = np.nan


@pytest.mark.parametrize("epochs", [(0,), (1, 2)])
def test_nan_leaves_the_step_out_when_asked(tmp_path, epochs):
    bad = BadBatch(*epochs)
    bad._supports_tf_logs = False
    with pytest.warns(UserWarning, match="loss=nan in epoch . after . steps. The step is left out"):
        outcome = train(tmp_path, first=[bad], nan="skip", **CHEAP)
    assert np.isfinite(outcome["history"]["loss"]).all()
    assert int(bad.model.optimizer.iterations) == 4 * STEPS - 2 * len(epochs)


def test_nan_that_stays_ends_the_training(tmp_path):
    with pytest.warns(UserWarning, match="The step is left out"):
        with pytest.raises(FloatingPointError, match="loss=nan in epoch 3 .*after all that could"):
            train(tmp_path, first=[Poison(1)], nan="skip", interval=9, **CHEAP)


def test_nan_is_ignored_when_asked(tmp_path):
    outcome = train(tmp_path, Poison(3), nan="ignore", **CHEAP)
    assert np.isnan(outcome["history"]["loss"][3])

"""A training with backups in which a loss or a weight is no number any more."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from interrupted import CHEAP, train

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


@pytest.mark.parametrize("options", [{"backup": {"nan": "stop"}}, {"optimizer": "schedule"}])
def test_nan_stops_the_training_where_nothing_can_be_lowered(tmp_path, options):
    with pytest.raises(FloatingPointError, match="loss=nan in epoch 1 after 4 steps"):
        train(tmp_path, Poison(1), **CHEAP, **options)


def test_nan_is_ignored_when_asked(tmp_path):
    outcome = train(tmp_path, Poison(3), backup={"nan": "ignore"}, **CHEAP)
    assert np.isnan(outcome["history"]["loss"][3])

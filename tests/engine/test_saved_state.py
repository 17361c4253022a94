"""What training needs to go on is in every file that Keras writes of a model."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from small_networks import chain, data
from training import read_again

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.optimizers import bias_correction

pytestmark = pytest.mark.usefixtures("deterministic")
K = tf.keras.optimizers
OPTIMIZERS = {
    "adam": lambda: K.Adam(0.01),
    "fused": lambda: et.optimizers.adam(0.01),
    "sgdw": lambda: et.optimizers.sgdw(0.01),
    "average": lambda: K.AdamW(0.01, use_ema=True, ema_momentum=0.9),
    "scaled": lambda: tf.keras.mixed_precision.LossScaleOptimizer(et.optimizers.adam(0.01)),
}


def made(kind):
    tf.keras.utils.set_random_seed(0)
    model = et.ElasticModel.from_model(chain())
    model.compile(OPTIMIZERS[kind](), tf.keras.losses.SparseCategoricalCrossentropy(True))
    return model


def fit(model, first):
    model.set_mask(np.arange(len(model.tensors)) >= first)
    x, y = data()
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)


ENDINGS = (".keras", ".h5", ".weights.h5", "checkpoint")
# Keras 2.15 begins a new optimizer inside a loss scale, and says so
CASES = [("adam", e) for e in ENDINGS] + [(k, e) for k in OPTIMIZERS for e in (".keras", ".h5")][2:]
CASES.remove(("scaled", ".h5"))
if not stack.KERAS_VERSION.startswith("2."):
    # Keras 3 builds the optimizer that it reads from such a file over no variables
    CASES = [case for case in CASES if case[1] != ".h5"]


@pytest.mark.parametrize(("kind", "ending"), CASES)
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning")
def test_training_goes_on_as_if_nothing_had_been_saved(kind, ending, tmp_path):
    model = made(kind)
    fit(model, 4)
    again = read_again(model, lambda: made(kind), str(tmp_path / f"model{ending}"))
    for one in (model, again):
        fit(one, 0)
    np.testing.assert_equal(model.get_weights(), again.get_weights())
    counts = bias_correction.of(et.optimizers.unwrapped(again.optimizer))
    if counts is not None:
        assert counts.numpy().tolist() == [8, 8, 8, 8, 0, 0, 0, 0]


def test_a_saved_model_is_loaded(tmp_path):
    model = made("scaled")
    fit(model, 4)
    model.export(str(tmp_path / "saved"))
    again = tf.saved_model.load(str(tmp_path / "saved"))
    x, _ = data()
    np.testing.assert_array_equal(model(x), again.serve(x))


class Acts(tf.keras.callbacks.Callback):
    """Calls functions of the model when `fit` begins and at steps of the first epoch."""

    def __init__(self, begin=None, **steps):
        super().__init__()
        self.begin, self.steps = begin, steps

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 0 and self.begin is not None:
            self.begin(self.model)

    def on_train_batch_begin(self, batch, logs=None):
        act = self.steps.pop(f"step{batch}", None)
        if act is not None:
            act(self.model)


def averaged(model, begin=None, mask=None, rate=0.0, **steps):
    """Trained with averages; returns the weights."""
    model.compile(
        K.SGD(rate, use_ema=True, ema_momentum=0.9),
        tf.keras.losses.SparseCategoricalCrossentropy(True),
    )
    et.optimizers.build(model.optimizer, model.trainable_variables)
    if mask is not None:
        model.set_mask(mask)
    x, y = data()
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[Acts(begin, **steps)])
    return model.get_weights()


def test_averages_begin_at_the_weights_before_the_first_step():
    model = made("adam")
    model.set_weights([weight * 0.0 for weight in model.get_weights()])
    mask = np.arange(8) >= 2
    wanted = [weight + 1.0 for weight in model.get_weights()]
    got = averaged(model, begin=lambda model: model.set_weights(wanted), mask=mask)
    for tensor in stack.trainable(model):
        np.testing.assert_array_equal(tensor, np.ones(tensor.shape))
    assert len(got) == len(wanted)


def test_a_plan_without_a_step_trains_nothing():
    model = made("adam")
    fit(model, 0)
    head, all_ = np.arange(8) >= 6, np.ones(8, bool)
    averaged(model, rate=0.1)  # all averages lag behind
    before = model.tensors[0].numpy()
    model.set_weights([weight + 1.0 for weight in model.get_weights()])
    x, y = data()
    switch = Acts(step1=lambda m: (m.set_mask(all_), m.set_mask(head)))
    model.set_mask(head)
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[switch])
    np.testing.assert_array_equal(model.tensors[0], before + 1.0)


def test_a_model_that_is_built_in_its_first_step_has_averages():
    class Late(et.ElasticMixin, tf.keras.Sequential):
        pass

    weights = []
    for kind in (Late, tf.keras.Sequential):
        tf.keras.utils.set_random_seed(1)
        model = kind([tf.keras.layers.Dense(3)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(K.SGD(0.1, use_ema=True, ema_momentum=0.5), loss)
        model.fit(*data(), batch_size=4, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    np.testing.assert_equal(*weights)


def test_two_threads_train_as_one_after_the_other():
    results = {}

    def train(name):
        results[name] = averaged(made("adam"), rate=0.1, mask=np.arange(8) >= 4)

    tf.keras.backend.clear_session()
    train("alone")
    threads = [threading.Thread(target=train, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3

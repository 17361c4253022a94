"""What training needs to go on is in every file that Keras writes of a model."""

import numpy as np
import pytest
import tensorflow as tf
from small_networks import chain, data
from training import read_again

import elastic_tf as et

pytestmark = pytest.mark.usefixtures("deterministic")
K = tf.keras.optimizers
OPTIMIZERS = {
    "adam": lambda: K.Adam(0.01),
    "adamw": lambda: K.AdamW(0.01),
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


@pytest.mark.parametrize(
    ("kind", "ending"), [*zip(OPTIMIZERS, (".weights.h5", "checkpoint", ".keras"))]
)
def test_training_goes_on_as_if_nothing_had_been_saved(kind, ending, tmp_path):
    model = made(kind)
    fit(model, 4)
    again = read_again(model, lambda: made(kind), str(tmp_path / f"model{ending}"))
    for one in (model, again):
        fit(one, 0)
    np.testing.assert_equal(model.get_weights(), again.get_weights())
    counts = getattr(et.optimizers.unwrapped(again.optimizer), "missed_steps", None)
    if counts is not None:
        assert counts.numpy().tolist() == [8, 8, 8, 8, 0, 0, 0, 0]


def test_a_saved_model_is_loaded(tmp_path):
    model = made("scaled")
    fit(model, 4)
    model.export(str(tmp_path / "saved"))
    again = tf.saved_model.load(str(tmp_path / "saved"))
    x, _ = data()
    np.testing.assert_array_equal(model(x), again.serve(x))

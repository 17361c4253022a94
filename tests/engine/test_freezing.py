import numpy as np
import pytest
import tensorflow as tf
from networks import L, crossentropy, images, network, values
from training import assert_kept_alike

from elastic_tf import stack
from elastic_tf.model import ElasticModel
from elastic_tf.train.engine import freezing


class Stubborn(tf.keras.layers.Layer):
    """Counts its calls and shrinks its own kernel, whatever `trainable` says."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1],), initializer="ones")
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.calls.assign_add(1.0)
        self.kernel.assign(self.kernel * 0.5)
        return inputs * self.kernel


def names(layers) -> list[str]:
    return [layer.name for layer in layers]


def test_left_out_are_layers_with_buffers_and_tensors_none_of_which_is_trained():
    model = network()
    trained = [model.get_layer("conv1").kernel, model.get_layer("bn2").gamma]
    assert names(freezing.left_out(model, trained)) == ["bn1"]
    model.get_layer("bn1").trainable = False  # of which Keras takes care
    assert names(freezing.left_out(model, [])) == ["bn2"]
    bare = tf.keras.Sequential([L.Input((4,)), L.BatchNormalization(center=False, scale=False)])
    assert freezing.left_out(bare, []) == []


def test_frozen_layer_keeps_every_bit_when_it_assigns_regardless():
    layer = Stubborn()
    layer(tf.ones((2, 3)))
    before = values(layer.weights)
    with freezing.frozen([layer]):
        layer(tf.ones((2, 3)), training=True)
    assert values(layer.weights) == before


def test_frozen_layer_stays_frozen_until_the_last_holder_leaves():
    model = network()
    layer = model.get_layer("bn1")
    first = freezing.frozen([layer])
    first.__enter__()
    # a second replica asks while the first is inside
    assert names(freezing.left_out(model, [])) == ["bn1", "bn2"]
    with freezing.frozen([layer]):
        first.__exit__(None, None, None)
        assert not layer.trainable
    assert layer.trainable


def normalised() -> ElasticModel:
    """A trained normalisation, one without tensors, one that the user froze, and dropout."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((6, 6, 2))
    x = L.BatchNormalization(center=False, scale=False, momentum=0.5, name="bare")(inputs)
    x = L.BatchNormalization(momentum=0.5, name="bn")(L.Conv2D(4, 3)(x))
    x = L.BatchNormalization(momentum=0.5, name="held")(x)
    x = L.Dropout(0.5, name="dropout")(L.Flatten()(x))
    model = ElasticModel(inputs, L.Dense(3, name="head")(x))
    model.get_layer("held").trainable = False
    model.compile("sgd", crossentropy(), statistics="stored")
    return model


def test_stored_statistics_are_used_and_kept_where_scale_and_offset_are_trained():
    model, (x, y) = normalised(), map(tf.constant, images())
    before, scale = values(model.non_trainable_weights), values(model.get_layer("bn").weights[:2])
    seen = []
    head = model.get_layer("head")
    head.call = lambda x, **options: seen.append(x.numpy()) or type(head).call(head, x)
    model.forward((x, y))
    del head.call
    dropped = seen[0]
    inside = tf.keras.Model(model.input, model.get_layer("held").output)(x).numpy()
    expected = 2.0 * inside.reshape(len(x), -1)  # of what dropout leaves
    np.testing.assert_allclose(dropped[dropped != 0], expected[dropped != 0], rtol=1e-5)
    assert 0.3 < (dropped == 0).mean() < 0.7
    model.fit(x, y, verbose=0)
    assert values(model.non_trainable_weights) == before
    assert values(model.get_layer("bn").weights[:2]) != scale
    assert model.get_layer("bn").trainable and not model.get_layer("held").trainable


def test_stored_statistics_give_the_gradients_of_a_call_in_inference_mode():
    model, source = ElasticModel.from_model(network()), network()
    model.compile("sgd", crossentropy(), statistics="stored")
    x, y = map(tf.constant, images())
    with tf.GradientTape() as tape:
        loss = crossentropy()(y, source(x, training=False))
    expected = tape.gradient(loss, source.trainable_variables)
    for variables in (None, model.trainable_variables):
        _, found = model.gradients((x, y), variables)
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "kind", [lambda: L.BatchNormalization(synchronized=True), *stack.NORMALISATIONS[1:]]
)
def test_synchronised_normalisation_keeps_its_statistics_too(kind):
    model = ElasticModel.from_model(tf.keras.Sequential([L.Input((2,)), kind(), L.Dense(1)]))
    model.compile("sgd", "mse", statistics="stored")
    before = values(model.non_trainable_weights)
    model.fit(np.random.default_rng(0).normal(3.0, 2.0, (8, 2)), np.zeros(8), verbose=0)
    assert values(model.non_trainable_weights) == before


def test_what_is_kept_of_samples_fits_to_stored_statistics():
    def made():
        model = normalised()
        model.get_layer("dropout").rate = 0.0
        model.set_mask(np.arange(len(model.tensors)) >= 2)  # from the trained normalisation on
        return model

    assert_kept_alike(made, images(), batch_size=5, rtol=1e-4, atol=1e-6)


def test_options_of_the_step_are_saved_with_the_model(tmp_path):
    model = normalised()
    model.compile("sgd", crossentropy(), statistics="stored", keep=0.25)
    model.save(tmp_path / "model.keras")
    read = tf.keras.models.load_model(tmp_path / "model.keras")._elastic
    assert (read.statistics, read.keep) == ("stored", 0.25)
    with pytest.raises(ValueError, match="`statistics` must be one of batch, stored.*'moving'"):
        model.compile("sgd", "mse", statistics="moving")

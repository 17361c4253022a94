from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import CLASSES, IMAGE, L, images
from prunable import NETWORKS, assert_close, channels_of, residual, shrink

from elastic_tf.baselines.prunetrain import model as prunetrain
from elastic_tf.baselines.prunetrain import rebuild
from elastic_tf.zoo import models


def smaller(network, small):
    return rebuild.rebuilt(network, channels_of(network), ~small)


def assert_same_function(network, x):
    small = shrink(network)
    new, _ = smaller(network, small)
    assert new.count_params() < 0.8 * network.count_params()
    assert_close(new(x), network(x))
    return new


@pytest.mark.parametrize("name", NETWORKS)
def test_a_rebuilt_model_computes_what_the_masked_one_does(name):
    network = rebuild.flat_network(NETWORKS[name]())
    new = assert_same_function(network, images()[0])
    if name != "branches":  # which has dropout
        assert_close(new(images()[0], training=True), network(images()[0], training=True))


@pytest.mark.parametrize(
    "name, options",
    [
        ("digits_resnet", {"input_size": 16}),
        ("mobilenet", {"input_size": 32, "alpha": 0.25}),
        pytest.param("mobilenet_v2", {"input_size": 32, "alpha": 0.35}, marks=pytest.mark.slow),
    ],
)
def test_a_rebuilt_zoo_model_computes_what_the_masked_one_does(name, options):
    tf.keras.utils.set_random_seed(0)
    model = models.build(name, classes=CLASSES, **options)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if len(weight.shape) == 1:
            weight.assign(weight + rng.uniform(0.1, 0.3, weight.shape))
    x = rng.uniform(0, 255, (2, *model.input_shape[1:])).astype(np.float32)
    assert_same_function(rebuild.flat_network(model), x)


def test_layers_of_other_ranks_are_rebuilt():
    inputs = L.Input((8, 3))
    x = L.Conv1D(5, 3, activation="relu")(inputs)
    x = L.SeparableConv1D(4, 3)(L.BatchNormalization()(x))
    x = L.Dense(6, activation="gelu")(L.AveragePooling1D()(x))  # on each of the places
    network = tf.keras.Model(inputs, L.Dense(CLASSES)(L.Flatten()(x)))
    assert_same_function(network, np.random.default_rng(0).normal(size=(4, 8, 3)))


def test_a_model_with_several_inputs_and_outputs_keeps_their_structure():
    one, two = L.Input(IMAGE, name="one"), L.Input(IMAGE, name="two")
    conv = L.Conv2D(6, 3, name="conv")
    x = L.Average()([conv(one), conv(two)])
    outputs = {"a": L.Dense(2, name="a")(L.Flatten()(x)), "b": L.Conv2D(3, 1, name="b")(x)}
    network = tf.keras.Model({"one": one, "two": two}, outputs)
    data = {"one": images(seed=0)[0], "two": images(seed=1)[0]}
    new, _ = smaller(network, shrink(network))
    assert new.count_params() < network.count_params()
    assert new.output_names == network.output_names
    for name, value in network(data).items():
        assert_close(new(data)[name], value)


def test_what_is_kept_keeps_its_bits():
    network = residual()
    small = shrink(network)
    new, carried = smaller(network, small)
    assert [item.new for item in carried] == new.weights
    for layer in network.layers:
        for old, fresh in zip(layer.weights, new.get_layer(layer.name).weights):
            (item,) = [item for item in carried if item.new is fresh]
            assert item.old is old
            np.testing.assert_array_equal(fresh.numpy(), item.of(old.numpy()))


def test_a_model_inside_keeps_the_mode_that_it_is_called_in():
    model = NETWORKS["nested"]()
    network = rebuild.flat_network(model)
    x = images()[0]
    assert not any(isinstance(layer, tf.keras.Model) for layer in network.layers)
    np.testing.assert_array_equal(network(x, training=True), model(x, training=True))
    before = network.get_layer("norm").get_weights()
    network(x, training=True)
    np.testing.assert_array_equal(network.get_layer("norm").get_weights(), before)


def test_frozen_layers_stay_frozen_and_random_generators_go_on():
    network = NETWORKS["branches"]()
    network.get_layer("separable").trainable = False
    new, _ = smaller(network, shrink(network))
    assert not new.get_layer("separable").trainable_weights
    assert len(new.trainable_weights) == len(network.trainable_weights)
    old, fresh = ([la for la in net.layers if type(la) is L.Dropout][0] for net in (network, new))
    assert fresh is not old and fresh._random_generator is old._random_generator


def test_a_model_of_mixed_precision_is_rebuilt():
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        network = residual()
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    new, _ = smaller(network, shrink(network))
    assert new.get_layer("one_a").compute_dtype == "float16"
    np.testing.assert_allclose(new(images()[0]), network(images()[0]), atol=2e-2)


class Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__(name="own")
        self.layer = L.Dense(3)

    def call(self, inputs):
        return self.layer(inputs)


class OwnCall(tf.keras.Model):
    def call(self, inputs, training=None, mask=None):
        return 2 * super().call(inputs)


class OwnStep(tf.keras.Model):
    def train_step(self, data):
        return super().train_step(data)


class Nameless(L.Layer):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def call(self, inputs):
        return inputs


def of(*layers, kind=tf.keras.Model):
    inputs = x = L.Input((4,))
    for layer in layers:
        x = layer(x)
    return kind(inputs, x)


def tied():
    one, two = L.Dense(4, name="one"), L.Dense(4, name="two")
    model = of(one, two, L.Dense(3))
    two.kernel = one.kernel
    two._trainable_weights[0] = one.kernel
    return model


def with_loss_beside():
    model = of(L.Dense(5), L.Dense(3))
    model.add_loss(tf.reduce_sum(model.layers[1].output))
    return model


@pytest.mark.parametrize(
    "make, error, received",
    [
        (lambda: "a model", TypeError, "'a model' of type str"),
        (Subclassed, TypeError, "'own' of class Subclassed"),
        (lambda: tf.keras.Sequential([L.Dense(3)]), TypeError, "of class Sequential"),
        (lambda: of(L.Dense(5), L.Dense(3), kind=OwnCall), TypeError, "of class OwnCall"),
        (lambda: of(L.Dense(5), L.Dense(3), kind=OwnStep), TypeError, "OwnStep.*train_step"),
        (lambda: of(L.Dense(5), Nameless(np.float32), L.Dense(3)), TypeError, "of class Nameless"),
        (with_loss_beside, ValueError, "with .* beside them"),
        (tied, ValueError, "'dense.*' in 'one' and 'two'|'one.*' in 'one' and 'two'"),
        (lambda: of(L.Dense(3)), ValueError, "Received: 'model.*', where all belong"),
    ],
)
def test_a_model_that_cannot_be_rebuilt_is_refused(make, error, received):
    with pytest.raises(error, match=received):
        prunetrain.adapt(make())

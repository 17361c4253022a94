from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import L, images, network, values

from elastic_tf.engine import freezing


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


def test_left_out_lists_layers_with_buffers_and_no_trained_tensor():
    model = network()
    trained = [model.get_layer("conv1").kernel, model.get_layer("bn2").gamma]
    assert names(freezing.left_out(model, trained)) == ["bn1"]


def test_left_out_looks_into_nested_models():
    inner = network()
    inputs = L.Input(inner.input_shape[1:])
    model = tf.keras.Model(inputs, inner(inputs))
    assert names(freezing.left_out(model, [])) == ["bn1", "bn2"]


def test_left_out_skips_layers_the_user_froze():
    model = network()
    model.get_layer("bn1").trainable = False
    assert names(freezing.left_out(model, [])) == ["bn2"]


def test_left_out_skips_layers_without_a_tensor_of_their_own():
    model = tf.keras.Sequential([L.Input((4,)), L.BatchNormalization(center=False, scale=False)])
    assert freezing.left_out(model, []) == []


def test_frozen_batch_normalisation_runs_in_inference_mode():
    model, (x, _) = network(), images()
    expected = model(x, training=False).numpy()
    with freezing.frozen(freezing.left_out(model, [])):
        np.testing.assert_array_equal(model(x, training=True), expected)


def test_frozen_layer_keeps_every_bit_when_it_assigns_regardless():
    layer = Stubborn()
    layer(tf.ones((2, 3)))
    before = values(layer.weights)
    with freezing.frozen([layer]):
        layer(tf.ones((2, 3)), training=True)
    assert values(layer.weights) == before


def test_frozen_layer_puts_no_assignment_into_the_graph():
    layer = Stubborn()
    layer(tf.ones((2, 3)))

    @tf.function
    def run(x):
        with freezing.frozen([layer]):
            return layer(x, training=True)

    ops = [op.type for op in run.get_concrete_function(tf.ones((2, 3))).graph.get_operations()]
    assert not [op for op in ops if op.startswith("Assign")]


def test_frozen_layer_is_trainable_again_after_an_error():
    layer = L.BatchNormalization()
    with pytest.raises(ZeroDivisionError), freezing.frozen([layer]):
        _ = 1 / 0
    assert layer.trainable


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

import numpy as np
import pytest
import tensorflow as tf
from activations import activation_bytes
from networks import L
from related.tinytl import sparing
from test_baselines import CLASSES
from test_tinytl import compiled

from elastic_tf import stack
from elastic_tf.stack import attributes

FLOAT, BOOL = 4, 1  # bytes


def gradients(layer: L.Layer, x: tf.Tensor, **options) -> list[np.ndarray]:
    """The result, and the gradients of a weighted sum of it."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, **options)
        weights = np.arange(y.shape.num_elements(), dtype=np.float32).reshape(y.shape)
        weighted = tf.reduce_sum(tf.where(tf.math.is_finite(y), y, 0.0) * weights)
    return [y, *tape.gradient(weighted, [x, *layer.trainable_weights])]


@pytest.mark.parametrize("options", [{}, {"scale": False}, {"center": False}, {"epsilon": 1e-7}])
def test_stored_normalisation_is_batch_normalisation_at_inference(options):
    x = tf.random.stateless_normal((2, 3, 3, 4), [0, 1])
    layers = [L.BatchNormalization(**options), sparing.StoredNormalization(**options)]
    rng = np.random.default_rng(0)
    for layer in layers:
        layer.build(x.shape)
    layers[0].set_weights([rng.uniform(0.5, 2, w.shape) for w in layers[0].get_weights()])
    layers[1].set_weights(layers[0].get_weights())
    # Keras 3 makes several operations of a normalisation, an elastic model one, unless epsilon is
    # too small for it
    with attributes(layers[0], **stack.in_one_op(layers[0])):
        usual = gradients(layers[0], x, training=False)
    is_one = stack.KERAS_VERSION.startswith("2.") or layers[0].epsilon > 1e-5
    for training in (False, True):
        found = gradients(layers[1], x, training=training)
        np.testing.assert_allclose(found[0], usual[0], rtol=0 if is_one else 1e-4)
        for one, other in zip(found, usual):
            np.testing.assert_allclose(one, other, rtol=1e-4)


@pytest.mark.parametrize("bound", [None, 6.0])
def test_masked_relu_is_relu(bound):
    numbers = [-2.0, -0.0, 0.0, 1.0, 6.0, 7.0, np.inf, -np.inf, np.nan]
    x = tf.reshape(tf.constant(numbers), (1, 1, 1, -1))
    usual = gradients(L.ReLU(bound), x)
    for one, other in zip(gradients(sparing.MaskedReLU(bound), x), usual):
        np.testing.assert_array_equal(one, other)


def test_a_frozen_backbone_keeps_one_byte_for_each_relu():
    inputs = L.Input((8, 8, 3))
    x = L.BatchNormalization(name="bn1")(L.Conv2D(4, 1, name="conv1")(inputs))
    x = L.ReLU(6.0)(x)
    x = L.BatchNormalization(name="bn2")(L.Conv2D(5, 1, name="conv2")(x))
    x = L.GlobalAveragePooling2D()(L.ReLU()(x))
    model = tf.keras.Model(inputs, L.Dense(CLASSES, name="head")(x))
    same = tf.keras.models.clone_model(
        model, clone_function=lambda layer: sparing.in_place_of(layer, is_stored=True)
    )
    batch = np.ones((2, 8, 8, 3), np.float32), np.zeros(2)
    usual, less = compiled(stack.on_stored_statistics(model)), compiled(same)
    mask = np.array([not tensor.name.endswith(("kernel:0", "gamma:0")) for tensor in less.tensors])
    loss = FLOAT * 2 * CLASSES
    pixels = 2 * 8 * 8
    # usually the input of both normalisations and the result of both activations
    assert activation_bytes(usual, batch, mask) == loss + FLOAT * pixels * (4 + 4 + 5 + 5)
    assert activation_bytes(less, batch, mask) == loss + BOOL * pixels * (4 + 5)

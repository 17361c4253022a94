"""What a step must keep of its forward pass follows from what is trained."""

import numpy as np
import tensorflow as tf
from activations import activation_bytes
from networks import K, L, mask_of

from elastic_tf.model import ElasticModel

FLOAT = 4  # bytes


def total(y, y_pred):
    """A loss whose gradient takes nothing."""
    return tf.reduce_sum(tf.reshape(y_pred, (tf.shape(y_pred)[0], -1)), axis=-1)


def compiled(*layers) -> ElasticModel:
    model = ElasticModel.from_model(tf.keras.Sequential(layers))
    model.compile(K.SGD(0.1), total)
    return model


def batch(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(shape, np.float32), np.zeros(shape[0], np.float32)


def kept(model, data, *starts) -> int:
    """Bytes that are kept when these tensors are trained."""
    return activation_bytes(model, data, mask_of(model, *starts))


def test_a_dense_kernel_needs_its_input_and_a_bias_nothing():
    model = compiled(L.Input((5,)), L.Dense(4, name="a"), L.Dense(3, name="b"))
    data = batch(2, 5)
    assert kept(model, data, "b/kernel") == FLOAT * 2 * 4
    assert kept(model, data, "a/bias", "b/bias") == 0
    # the gradient passes the second layer by its kernel alone
    assert kept(model, data, "a/kernel") == FLOAT * 2 * 5
    assert activation_bytes(model, data) == FLOAT * (2 * 5 + 2 * 4)


def test_a_convolution_needs_its_input_for_its_kernel_alone():
    model = compiled(
        L.Input((6, 6, 2)), L.Conv2D(3, 3, name="a"), L.Conv2D(5, 3, strides=2, name="b")
    )
    data = batch(2, 6, 6, 2)
    assert kept(model, data, "b") == FLOAT * 2 * 4 * 4 * 3
    assert kept(model, data, "a/bias", "b/bias") == 0
    assert activation_bytes(model, data) == FLOAT * (2 * 6 * 6 * 2 + 2 * 4 * 4 * 3)


def test_normalisation_by_stored_statistics_needs_its_input():
    inputs = L.Input((6, 6, 2))
    x = L.Conv2D(3, 3, name="a")(inputs)
    x = L.BatchNormalization(name="bn")(x)
    model = ElasticModel.from_model(tf.keras.Model(inputs, L.Conv2D(4, 3, name="last")(x)))
    model.compile(K.SGD(0.1), total, statistics="stored")
    data = batch(2, 6, 6, 2)
    size = FLOAT * 2 * 4 * 4 * 3
    # TensorFlow's gradient of the fused op takes the input for beta too
    assert kept(model, data, "bn/beta") == size
    assert kept(model, data, "bn", "last") == 2 * size
    assert kept(model, data, "last") == size

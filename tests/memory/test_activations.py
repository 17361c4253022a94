import numpy as np
import tensorflow as tf
from activations import activation_bytes
from networks import (
    OPTIMIZERS,
    K,
    L,
    crossentropy,
    half_precision,
    images,
    mask_of,
    network,
    values,
)

from elastic_tf.model import ElasticModel
from elastic_tf.plan import Plan

FLOAT = 4  # bytes


def total(y, y_pred):
    """A loss whose gradient takes nothing."""
    return tf.reduce_sum(tf.reshape(y_pred, (tf.shape(y_pred)[0], -1)), axis=-1)


def compiled(*layers, loss=total, **options) -> ElasticModel:
    model = ElasticModel.from_model(tf.keras.Sequential(layers))
    model.compile(K.SGD(0.1), loss, **options)
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
    assert activation_bytes(model, data, mask_of(model, "b")) == FLOAT * 2 * 4 * 4 * 3
    assert activation_bytes(model, data, mask_of(model, "a/bias", "b/bias")) == 0
    assert activation_bytes(model, data) == FLOAT * (2 * 6 * 6 * 2 + 2 * 4 * 4 * 3)


def test_a_filtered_convolution_keeps_one_number_for_each_patch_and_channel():
    model = compiled(L.Input((8, 8, 2)), L.Conv2D(3, 3, padding="same", name="a"))
    data = batch(2, 8, 8, 2)
    filtered = Plan.full(2).filtered(4, np.array([True, False]))
    assert activation_bytes(model, data) == FLOAT * 2 * 8 * 8 * 2
    assert activation_bytes(model, data, filtered) == FLOAT * 2 * 2 * 2 * 2


def test_relu_keeps_its_result_once_for_itself_and_the_next_layer():
    model = compiled(L.Input((5,)), L.Dense(4, name="a"), L.ReLU(name="relu"), L.Dense(3, name="b"))
    data = batch(2, 5)
    relu = FLOAT * 2 * 4
    assert kept(model, data, "a/bias") == relu
    assert kept(model, data, "a/bias", "b/kernel") == relu
    assert kept(model, data, "b") == relu


def test_normalisation_by_stored_statistics_needs_its_input():
    inputs = L.Input((6, 6, 2))
    x = L.Conv2D(3, 3, name="a")(inputs)
    x = L.BatchNormalization(name="bn")(x)
    model = ElasticModel.from_model(tf.keras.Model(inputs, L.Conv2D(4, 3, name="last")(x)))
    model.compile(K.SGD(0.1), total, statistics="stored")
    data = batch(2, 6, 6, 2)
    size = FLOAT * 2 * 4 * 4 * 3
    # TensorFlow's gradient of the fused op takes the input for beta too
    assert activation_bytes(model, data, mask_of(model, "bn/beta")) == size
    assert activation_bytes(model, data, mask_of(model, "bn", "last")) == 2 * size
    assert activation_bytes(model, data, mask_of(model, "last")) == size


def test_normalisation_by_the_batch_keeps_its_statistics_too():
    model = compiled(L.Input((6, 6, 2)), L.Conv2D(3, 3, name="a"), L.BatchNormalization(name="bn"))
    data = batch(2, 6, 6, 2)
    # mean and variance of 3 channels, or a derivative of them, beside the input
    extra = activation_bytes(model, data, mask_of(model, "bn")) - FLOAT * 2 * 4 * 4 * 3
    assert extra in (FLOAT * 3 * 2, FLOAT * 3 * 3)


def test_the_mask_of_dropout_is_kept():
    model = compiled(L.Input((50,)), L.Dense(40, name="a"), L.Dropout(0.5), L.Dense(3, name="b"))
    assert kept(model, batch(2, 50), "a/bias") == 80  # bools


def test_what_is_computed_again_is_not_kept():
    def sizes(keep):
        layers = [L.Dense(40, "relu", name=f"layer_{k}") for k in range(6)]
        model = compiled(L.Input((5,)), *layers, keep=keep)
        return activation_bytes(model, batch(2, 5))

    assert 0 < sizes(0) < sizes(None) == FLOAT * (2 * 5 + 6 * 2 * 40)


def test_bytes_follow_the_type():
    with half_precision():
        model = compiled(L.Input((5,)), L.Dense(4, name="a"), L.Dense(3, name="b"))
    # kernels in half precision are made of weights alone: no activations
    assert activation_bytes(model, batch(2, 5), mask_of(model, "a/bias", "b")) == 2 * 2 * 4


def test_a_model_of_many_layers_adds_up():
    model = ElasticModel.from_model(network())
    model.compile(OPTIMIZERS["sgd"](), crossentropy())
    x, y = images()
    data = x[:8], y[:8]
    head = activation_bytes(model, data, mask_of(model, "head"))
    # the input of the head, 2 * 2 * 4, and the gradient of the loss, 3 classes
    assert head == FLOAT * 8 * (16 + 3)
    assert activation_bytes(model, data) > activation_bytes(model, data, mask_of(model, "bn2"))
    nothing = np.zeros(len(model.tensors), bool)
    assert activation_bytes(model, data, nothing) == 0


def test_a_loop_has_no_known_size():
    model = compiled(L.Input((5, 2)), L.RNN(L.SimpleRNNCell(3)), L.Dense(2, name="b"))
    data = batch(2, 5, 2)
    assert activation_bytes(model, data) is None
    assert activation_bytes(model, data, mask_of(model, "b")) == FLOAT * 2 * 3


def test_counting_leaves_nothing_behind():
    model = compiled(L.Input((5,)), L.Dense(4), L.BatchNormalization(), L.Dropout(0.5, seed=3))
    before = values(model.weights)
    activation_bytes(model, batch(2, 5))
    assert values(model.weights) == before
    assert model.mask.all()

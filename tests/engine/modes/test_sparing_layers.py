"""What filtered convolutions drop is kept by no other layer."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from activations import activation_bytes
from related.gradient_filtering import gradient_costs

import elastic_tf as et
from elastic_tf.train.engine import modes

L = tf.keras.layers
SIZE, BATCH = 8, 2


def network(*, is_stored: bool = True) -> et.ElasticModel:
    tf.keras.utils.set_random_seed(0)
    options = {"padding": "same", "use_bias": False}
    inputs = L.Input((SIZE, SIZE, 3))
    x = inputs
    for name, rectified in (("one", L.ReLU(6.0)), ("two", L.Activation("relu"))):
        x = L.Conv2D(4, 3, name=name, **options)(x)
        x = L.BatchNormalization(name=f"{name}_bn")(x, training=False if is_stored else None)
        x = rectified(x)
    x = L.Conv2D(6, 3, name="three", activation="relu", **options)(x)
    x = L.Conv2D(5, 1, name="four", **options)(x)
    x = L.Dense(3, name="head")(L.GlobalAveragePooling2D()(x))
    model = et.ElasticModel.from_model(tf.keras.Model(inputs, x))
    for layer in model.layers:
        if isinstance(layer, L.BatchNormalization):
            rng = np.random.default_rng(1)
            layer.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in layer.get_weights()])
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def data() -> tuple[tf.Tensor, tf.Tensor]:
    x = np.random.default_rng(0).normal(size=(BATCH, SIZE, SIZE, 3)).astype(np.float32)
    return tf.constant(x), tf.range(BATCH)


def plan(model: et.ElasticModel, names: str, *, scales: bool = False) -> et.Plan:
    """Kernels of these layers filtered by 2, others and the head exact, other tensors frozen."""
    parts = [tensor.name.split("/") for tensor in model.tensors]
    mask = np.array([part[1] == "kernel:0" or part[0] == "head" or scales for part in parts])
    return et.Plan.from_mask(mask).filtered(
        2, np.array([part[0] in names for part in parts]) & mask
    )


CONVOLUTIONS = ("one", "two", "three", "four")


def test_filtered_convolutions_keep_their_sums_and_rectifiers_a_byte():
    model = network()
    chosen = plan(model, CONVOLUTIONS)
    sums = BATCH * gradient_costs(model, chosen).kept.sum()
    assert sums == BATCH * 4 * (16 * (3 + 4 + 4 + 6) + 5)  # and the features of the head
    rectified = BATCH * SIZE * SIZE * (4 + 4 + 6)
    loss = activation_bytes(model, data(), np.arange(10) >= 8) - BATCH * 4 * 5
    assert activation_bytes(model, data(), chosen) == sums + rectified + loss
    exact = activation_bytes(model, data(), chosen.mask)
    assert exact > 2 * activation_bytes(model, data(), chosen)


def test_what_an_exact_convolution_keeps_anyway_is_not_kept_twice():
    model = network()
    with_mask = activation_bytes(model, data(), plan(model, ("one", "two", "three")))
    plain = activation_bytes(model, data(), plan(model, CONVOLUTIONS))
    # the fourth takes what the third's rectifier gives, in the place of sums and a mask
    assert with_mask - plain == BATCH * 6 * (SIZE * SIZE * 4 - 16 * 4 - SIZE * SIZE)


@pytest.mark.parametrize(("is_stored", "scales"), [(False, True), (True, True), (True, False)])
def test_gradients_are_those_without_sparing(monkeypatch, is_stored, scales):
    def found() -> list[tf.Tensor]:
        model = network(is_stored=is_stored)
        model.set_plan(plan(model, CONVOLUTIONS, scales=scales))
        trained = [tensor for tensor, on in zip(model.tensors, model.mask) if on]
        step, gradients = tf.function(lambda: model.gradients(data(), trained))()
        return [step.loss, *gradients]

    with_sparing = found()
    for code, mode in modes.MODES.items():
        monkeypatch.setitem(modes.MODES, code, dataclasses.replace(mode, beside=None))
    for one, other in zip(with_sparing, found()):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)

"""Shampoo against loops of NumPy, under plans, in files, and on the device without TensorFlow."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from networks import L, crossentropy, half_precision, images, mask_of, values
from training import read_again

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.app.export import optimizer_settings
from elastic_tf.lite import updates
from elastic_tf.train import optimizers
from elastic_tf.train.optimizers.apply import Slice
from elastic_tf.train.optimizers.shampoo import inverse_root, rows_of

SHAPES = {  # of tensors, and their rows as matrices
    (1, 1, 20, 24): 20,
    (101, 17): 101,
    (4, 8, 32): 32,
    (5,): 0,
    (3, 3, 8, 1): 0,
}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def network() -> tf.keras.Model:
    """Convolutions, of which three kernels are matrices, and a dense head that is none."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((6, 6, 2))
    x = L.Conv2D(20, 3, activation="relu", name="first")(inputs)
    x = L.DepthwiseConv2D(2, name="depthwise")(x)
    x = L.BatchNormalization(name="bn")(x)
    x = L.Conv2D(70, 1, activation="relu", name="point")(x)
    x = L.Dense(17, name="dense")(L.GlobalAveragePooling2D()(x))
    return tf.keras.Model(inputs, L.Dense(3, name="head")(x))


def elastic(optimizer=None) -> et.ElasticModel:
    model = et.ElasticModel.from_model(network())
    model.compile(optimizer or optimizers.shampoo(1e-2), crossentropy())
    return model


def fit(model, epochs=3):
    return model.fit(*images(), batch_size=8, epochs=epochs, shuffle=False, verbose=0)


def test_axes_are_parted_where_a_kernel_is_squarest():
    more = {(3, 3, 2, 20): 18, (32, 4, 8): 32, (5, 16, 48): 80, (300, 4): 0}
    for shape, rows in (SHAPES | more).items():
        assert rows_of(tf.Variable(tf.zeros(shape), name="kernel")) == rows
    assert rows_of(tf.Variable(tf.zeros((64, 32)), name="embedding/embeddings")) == 0


def test_every_direction_is_as_large_as_the_others_behind_a_root(rng):
    vectors, _ = np.linalg.qr(rng.normal(size=(2, 40, 40)))
    spectrum = np.geomspace(1e-3, 1.0, 40)
    grams = 1e-9 * (vectors * spectrum) @ vectors.swapaxes(1, 2)
    roots = inverse_root(tf.constant(grams, tf.float32)).numpy()
    whitened = np.linalg.eigvalsh(roots @ grams @ roots)
    assert 0.4 < whitened.min() and whitened.max() < 1.5  # from 1e-3 to 1
    zeros = inverse_root(tf.zeros((1, 4, 4)))[0]
    np.testing.assert_allclose(zeros, zeros[0, 0] * np.eye(4))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [0.0, 0.03, 1.0])
def test_updates_are_those_of_a_loop_in_numpy(shape, size, rng):
    """Where the tensor takes part in some of the steps alone, each with its own count."""
    start = (size * rng.normal(size=shape)).astype(np.float32)
    ours = [tf.Variable(tf.zeros(4), name="other"), tf.Variable(start, name="kernel")]
    optimizer = optimizers.shampoo(0.01)
    optimizers.build(optimizer, ours)
    model = SimpleNamespace(optimizer=optimizer, trainable_variables=ours, tensors=ours[1:])
    told = optimizer_settings(model)
    value = start.copy()
    slots = updates.slots(told, 0, value)

    @tf.function
    def apply(gradient):
        optimizers.apply_selected(optimizer, [gradient], ours[1:])

    own = 0
    for step in range(30):
        gradient = rng.normal(size=shape).astype(np.float32)
        if step % 3 == 2:
            optimizers.apply_selected(optimizer, [tf.ones(4)], ours[:1])
            continue
        own += 1
        apply(tf.constant(gradient))
        updates.update(told, 0.01, [(0, own, (value, gradient, *slots))], threads=1)
        np.testing.assert_allclose(value, ours[1], rtol=1e-3, atol=1e-4)
    assert not np.allclose(value, start, atol=0.05 if size > 0.05 else 0.01)


@pytest.mark.parametrize(("own", "share"), [(1.0, 1.0), (0.05, 1.0), (0.03, 0.6), (0.0, 0.4)])
def test_an_update_has_the_size_of_the_rate_or_less_for_small_numbers(own, share, rng):
    values = rng.normal(size=(1, 1, 32, 48))
    values *= own / np.sqrt(np.mean(values**2))
    kernel = tf.Variable(values, dtype=tf.float32, name="kernel")
    gradient = tf.constant(rng.normal(size=kernel.shape), tf.float32)
    optimizer, before = optimizers.shampoo(0.02), kernel.numpy()
    optimizers.build(optimizer, [kernel])
    optimizers.apply_selected(optimizer, [gradient], [kernel])
    moved = kernel.numpy() - before
    assert np.sqrt(np.mean(moved**2)) == pytest.approx(0.02 * share, rel=1e-3)


def test_the_first_update_of_each_kernel_is_whitened(rng):
    left, _ = np.linalg.qr(rng.normal(size=(32, 32)))
    right, _ = np.linalg.qr(rng.normal(size=(48, 48)))
    gradient = tf.constant((left * np.geomspace(1e-2, 1.0, 32)) @ right[:32], tf.float32)
    kernels = [tf.Variable(tf.zeros((32, 48)), name=f"kernel_{k}") for k in range(3)]
    optimizer = optimizers.shampoo(0.02)
    optimizers.build(optimizer, kernels)
    for kernel in kernels:  # the others come in later
        optimizers.apply_selected(optimizer, [gradient], [kernel])
        moved = np.linalg.svd(kernel.numpy(), compute_uv=False)
        assert moved.max() < 4.0 * moved.min()  # of 100


def test_some_channels_move_and_the_others_keep_every_bit(rng):
    kernel = tf.Variable(rng.normal(size=(1, 1, 20, 24)), dtype=tf.float32, name="kernel")
    optimizer, before = optimizers.shampoo(0.01), kernel.numpy()
    optimizers.build(optimizer, [kernel])
    chosen = [1, 3, 4, 9, 10, 16, 20, 23]
    part = Slice.of(kernel, 3, len(chosen))
    part.choose(tuple(chosen))
    for _ in range(2 * updates.EVERY):
        gradient = tf.constant(rng.normal(size=(1, 1, 20, 8)), tf.float32)
        optimizers.apply_selected(optimizer, [gradient], [kernel])
    moved = kernel.numpy() - before
    assert (moved[..., chosen] != 0.0).all()
    assert not np.delete(moved, chosen, axis=3).any()
    assert np.abs(stack.raw(optimizer._grams[0])).sum() > 1.0


def test_what_is_left_out_keeps_every_bit_and_training_goes_on_from_a_file(tmp_path, deterministic):
    model = elastic()
    fit(model)
    model.set_mask(mask_of(model, "point", "head"))
    index = stack.index_of(model.optimizer, model.get_layer("dense").kernel)
    left = [v for v in stack.weights(model) if not v.name.startswith(("point", "head"))]
    left += [stack.raw(slots[index]) for slots in (model.optimizer._grams, model.optimizer._roots)]
    before, trained = values(left), values([model.get_layer("point").kernel])
    fit(model)
    assert values(left) == before
    assert values([model.get_layer("point").kernel]) != trained
    again = read_again(model, elastic, str(tmp_path / "model.keras"))
    for one in (model, again):
        one.set_plan(None)
        fit(one)
    np.testing.assert_equal(model.get_weights(), again.get_weights())


def test_it_trains_in_half_precision(deterministic):
    with half_precision():
        model = elastic(tf.keras.mixed_precision.LossScaleOptimizer(optimizers.shampoo(1e-2)))
    losses = fit(model, epochs=8).history["loss"]
    assert losses[-1] < losses[0]

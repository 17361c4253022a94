"""Keras's random layers as augmentation of samples, and networks that begin with them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.stack.augmentation import without_augmentation

L = tf.keras.layers
SIDE, CLASSES = 8, 3
of_keras3 = pytest.mark.skipif(stack.IS_KERAS2, reason="Keras 2 draws by another mechanism")


def data(count: int = 24, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(count) % CLASSES
    x = rng.uniform(0, 60, (count, SIDE, SIDE, 3))
    x[np.arange(count), :, :, y] += 120
    return x.astype(dtype), y


def layers() -> list[tf.keras.layers.Layer]:
    chain = tf.keras.Sequential([L.RandomTranslation(0.2, 0.2), L.RandomContrast(0.3)])
    return [L.RandomFlip("horizontal"), chain]


def network(*first: tf.keras.layers.Layer) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(0)
    x = inputs = L.Input((SIDE, SIDE, 3))
    for layer in first:
        x = layer(x)
    x = L.Conv2D(6, 3, activation="relu")(L.Rescaling(1 / 127.5, -1)(x))
    x = L.Dropout(0.2)(L.Flatten()(L.Conv2D(4, 3, activation="relu")(x)))
    return tf.keras.Model(inputs, L.Dense(CLASSES)(x))


@of_keras3
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_row_is_the_same_in_every_batch(dtype):
    samples = et.Samples(*data(dtype=dtype), batch_size=4, augment=layers(), views=3)
    every, _ = samples.take(np.arange(samples.rows))
    assert every.dtype == dtype
    views = np.split(every.numpy(), 3)
    assert (views[0] != views[1]).any(axis=(1, 2, 3)).all()
    rng, take = np.random.default_rng(1), samples.taker()
    for size in rng.integers(1, 9, 12):
        rows = rng.integers(0, samples.rows, size)
        for taken in (take, samples.take):
            found, y = taken(tf.constant(rows))
            np.testing.assert_allclose(found, tf.gather(every, rows), atol=1e-3)
            np.testing.assert_array_equal(y, data()[1][rows % samples.count])


@of_keras3
def test_views_are_what_the_layers_draw_and_these_draw_as_before():
    flip = L.RandomFlip("horizontal", seed=3)
    before = [np.array(state) for state in flip.variables]
    x, y = data()
    samples = et.Samples(x, y, batch_size=4, augment=flip, views=20)
    views = samples.take(np.arange(samples.rows))[0].numpy()
    same = (views == np.tile(x, (20, 1, 1, 1))).all(axis=(1, 2, 3))
    turned = (views == np.tile(x[:, :, ::-1], (20, 1, 1, 1))).all(axis=(1, 2, 3))
    assert (same ^ turned).all()
    assert 0.4 < same.mean() < 0.6
    np.testing.assert_equal([np.array(state) for state in flip.variables], before)


@pytest.mark.parametrize(
    "augment", [L.Dense(3), [], [L.Dropout(0.5)], *([[L.RandomFlip()]] if stack.IS_KERAS2 else [])]
)
def test_other_layers_are_refused(augment):
    given = augment if isinstance(augment, list) else [augment]
    name = ", ".join(type(layer).__name__ for layer in given) or "none"
    with pytest.raises(ValueError, match=f"random layers of images.* Received: {name}"):
        et.Samples(*data(), batch_size=4, augment=augment)


@of_keras3
def test_a_network_that_begins_with_them_trains_on_two_views_that_are_kept():
    """Bit for bit as one without them on such samples; what it was given predicts the same."""
    found = []
    for first in (layers(), []):
        given = network(*first)
        samples = et.Samples(*data(), batch_size=8, **({} if first else TWO_VIEWS))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # that nothing can be kept
            model = et.finetune(given, samples, data(), seconds=300, epochs=3, verbose=0)
        assert not any(isinstance(one, L.RandomFlip) for one in model.layers)
        found.append([value.tobytes() for value in model.get_weights()])
        x, _ = data()
        np.testing.assert_allclose(given(x, training=False), model(x, training=False), atol=1e-4)
    assert found[0] == found[1]


TWO_VIEWS = {"augment": layers(), "views": 2} if not stack.IS_KERAS2 else {}


@of_keras3
@pytest.mark.parametrize(
    ("first", "left"),
    [
        ([L.RandomFlip(), L.RandomRotation(0.1)], []),
        ([L.RandomFlip(), L.Rescaling(2.0), L.RandomZoom(0.1)], ["Rescaling", "RandomZoom"]),
        ([L.GaussianNoise(1.0)], ["GaussianNoise"]),  # no augmentation: drawn in each step
        ([L.Rescaling(2.0)], ["Rescaling"]),
    ],
)
def test_what_changes_nothing_in_use_is_taken_out(first, left):
    whole = network(*first)
    model, found = without_augmentation(whole)
    assert [type(one).__name__ for one in (*found, *first[len(found) :])] == [
        type(one).__name__ for one in first
    ]
    kinds = [type(one).__name__ for one in model.layers if type(one).__name__ != "InputLayer"]
    assert kinds[: len(left)] == left
    assert kinds[len(left)] == "Rescaling"
    x, _ = data()
    np.testing.assert_array_equal(whole(x, training=False), model(x, training=False))


@of_keras3
def test_what_cuts_in_use_too_and_what_stands_beside_another_way_stay():
    inputs = L.Input((SIDE, SIDE, 3))
    sides = [L.Flatten()(L.RandomFlip()(inputs)), L.Flatten()(inputs)]
    for end in (L.Flatten()(L.RandomCrop(6, 6)(inputs)), L.Concatenate()(sides)):
        model = tf.keras.Model(inputs, L.Dense(3)(end))
        assert without_augmentation(model) == (model, [])

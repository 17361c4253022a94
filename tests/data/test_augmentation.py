"""KerasCV's augmentations on training batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from elastic_tf.data import augmentation, from_arrays
from elastic_tf.data.augmentation import augmented


def coloured(count=8, size=8, channels=3):
    """Images of one colour each, black ones and white ones in turn."""
    x = np.zeros((count, size, size, channels), np.uint8)
    x[1::2] = 255
    return x, np.arange(count) % 2


def data(*names, channels=3, seed=3, **options):
    train = coloured(channels=channels)
    return from_arrays(
        train, coloured(4, channels=channels), batch_size=4, seed=seed, augment=names, **options
    )


def batches(name, channels=1, seed=3):
    """Batches of images of noise."""
    x = np.random.default_rng(0).uniform(0, 255, (8, 8, 8, channels)).astype(np.float32)
    y = tf.one_hot(np.arange(8) % 2, 2)
    plain = tf.data.Dataset.from_tensor_slices((x, y)).batch(4, drop_remainder=True)
    return augmented(plain, [name], seed=seed)


def passes(part, count=2):
    return [[(x.numpy(), y.numpy()) for x, y in part] for _ in range(count)]


def same(one, two):
    return all(np.array_equal(a, b) for left, right in zip(one, two) for a, b in zip(left, right))


# KerasCV's CutMix counts a cut as a whole where it reaches over the edge of the image too.
@pytest.mark.parametrize(
    ("name", "largest", "mean"), [("cutmix", 0.76, 0.2), ("mixup", 0.02, 0.02)]
)
def test_mixed_labels_are_the_shares_of_the_images(name, largest, mean):
    shared, off = 0, []
    for x, y in (batch for one in passes(data(name).train, 12) for batch in one):
        # the share of white in an image is the share of its label
        off.extend(np.abs(x.mean(axis=(1, 2, 3)) / 255 - y[:, 1]))
        np.testing.assert_allclose(y.sum(axis=1), 1, atol=1e-5)
        shared += ((y > 0.01) & (y < 0.99)).any(axis=1).sum()
    assert shared > 0
    assert max(off) <= largest and np.mean(off) <= mean


@pytest.mark.slow
@pytest.mark.parametrize("name", augmentation.NAMES)
def test_each_pass_differs_and_a_seed_gives_the_same_passes(name):
    first, second = passes(batches(name))
    again = passes(batches(name))
    assert not same(first, second)
    assert same(first, again[0]) and same(second, again[1])
    for x, y in first:
        assert x.shape == (4, 8, 8, 1) and x.dtype == np.float32 and y.shape == (4, 2)
        assert 0 <= x.min() and x.max() <= 255


def test_test_and_validation_are_not_mixed_and_have_labels_of_the_same_form():
    found = data("mixup", "cutmix", validation_share=0.25)
    assert found.one_hot and found.train.element_spec[1].shape == (4, 2)
    for part in (found.test, found.validation):
        for x, y in part:
            np.testing.assert_array_equal(x[:, 0, 0, 0] == 255, y[:, 1] == 1)


def test_training_works_as_before_after_a_layer_was_traced():
    before = tf.random.uniform
    next(iter(data("cutmix").train))
    assert tf.random.uniform is before


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="randaugment, cutmix, mixup. Received: augment='cutout'"):
        data("cutout")


def test_mixing_needs_two_images():
    with pytest.raises(ValueError, match="batch_size=1, augment=mixup"):
        from_arrays(coloured(), coloured(), batch_size=1, augment=("mixup",))

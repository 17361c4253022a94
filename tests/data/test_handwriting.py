"""Handwritten digits and their shifted domains."""

import numpy as np
import pytest

from elastic_tf.app.data import Shift, _shifted, digits


def shifted(x, **shift):
    return _shifted(np.float32(x), Shift(**shift), np.random.default_rng(0))


def corner_image(size=9):
    """Black with one bright pixel near the upper right corner."""
    x = np.zeros((1, size, size, 1), np.float32)
    x[0, 1, size - 2] = 255
    return x


def test_digits_are_images_of_ten_classes():
    (x_train, y_train), (x_test, y_test) = digits()
    assert x_train.shape == (1257, 32, 32, 1) and x_test.shape == (540, 32, 32, 1)
    assert x_train.dtype == np.uint8 and y_train.dtype == np.int64
    assert x_train.min() == 0 and x_train.max() == 255
    assert np.ptp(np.bincount(y_train)) <= 7 and np.ptp(np.bincount(y_test)) <= 3  # 174 to 183


def test_digits_have_one_split_for_a_seed_whatever_the_shift():
    clean, other = digits(seed=3), digits(seed=3, shift=Shift(inverted=True))
    for (x, y), (x_other, y_other) in zip(clean, other):
        np.testing.assert_array_equal(y, y_other)
        # Halves are rounded to even, before and after the inversion.
        np.testing.assert_allclose(x.astype(int), 255 - x_other.astype(int), atol=1)
    assert (digits(seed=4)[0][0] != clean[0][0]).any()


def test_rotation_turns_counter_clockwise():
    turned = shifted(corner_image(), rotation=90)
    # Upper right goes to upper left.
    np.testing.assert_allclose(turned[0, 1, 1, 0], 255, rtol=1e-4)
    np.testing.assert_allclose(turned.sum(), 255, rtol=1e-4)


def test_contrast_is_about_mid_grey():
    x = np.array([0.0, 127.5, 255.0]).reshape(1, 1, 3, 1)
    np.testing.assert_allclose(shifted(x, contrast=0.5).ravel(), [63.75, 127.5, 191.25])


def test_noise_has_the_standard_deviation_asked_for():
    assert shifted(np.full((1, 100, 100, 1), 128), noise=20).std() == pytest.approx(20, rel=0.03)

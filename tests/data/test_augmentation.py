"""Random changes of images by name, against SciPy and what each of them leaves as it is."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import ndimage

from elastic_tf.app.pipelines import AUGMENTATIONS, Batching, augmentation

SEEDS = [np.array([number, 3]) for number in range(40)]


def image(rng=0, shape=(9, 12, 3), low=60, high=190):
    return np.random.default_rng(rng).uniform(low, high, shape).astype(np.float32)


def changed(name, x, seeds=SEEDS):
    """The image, changed once for each seed."""
    return [augmentation(name)(tf.constant(x), seed).numpy() for seed in seeds]


def test_a_flip_mirrors_half_of_the_images_left_to_right():
    x = image()
    kinds = [
        "same" if (one == x).all() else "mirrored" if (one == x[:, ::-1]).all() else "other"
        for one in changed("flip", x, [np.array([number, 1]) for number in range(200)])
    ]
    assert set(kinds) == {"same", "mirrored"}
    assert 63 <= kinds.count("mirrored") <= 137  # outside of these bounds once in ten million


@pytest.mark.parametrize("shape", [(9, 12, 3), (8, 8, 1), (13, 6, 2)])
def test_a_rotation_is_scipys_about_the_middle(shape):
    x, angles = image(1, shape), []
    for seed, found in zip(SEEDS, changed("rotate", x)):
        folded = tf.random.experimental.stateless_fold_in(seed, 0)
        angle = float(tf.random.stateless_uniform((), folded, -0.3, 0.3))
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        middle = (np.array(shape[:2]) - 1) / 2
        offset = middle - turn @ middle
        for channel in range(shape[2]):
            theirs = ndimage.affine_transform(
                x[..., channel].astype(np.float64), turn, offset, order=1, mode="reflect"
            )
            np.testing.assert_allclose(found[..., channel], theirs, atol=2e-2)
        angles.append(angle)
    assert min(angles) < -0.2 and max(angles) > 0.2


def test_a_crop_is_a_window_of_eight_ninths():
    ramp = np.tile(np.arange(64, dtype=np.float32), (64, 1))
    x = np.stack([ramp, ramp.T], axis=-1)
    corners = []
    for found in changed("crop", x):
        inner = found[4:-4, 4:-4]
        np.testing.assert_allclose(np.diff(inner[..., 0], axis=1), 64 / 72, atol=1e-3)
        np.testing.assert_allclose(np.diff(inner[..., 1], axis=0), 64 / 72, atol=1e-3)
        corners.append(tuple(np.round(found[8, 8])))
    assert len({*corners}) > 8


def test_brightness_adds_one_number_and_contrast_stretches_about_the_mean():
    x = image(low=80, high=170)
    added = [found - x for found in changed("brightness", x)]
    for one in added:
        np.testing.assert_allclose(one, one.mean(), atol=1e-3)
    assert -51.1 < min(one.mean() for one in added) < -20 < 20 < max(one.mean() for one in added)
    assert max(one.mean() for one in added) < 51.1
    middle = x.mean((0, 1))
    stretched = [(found - middle) / (x - middle) for found in changed("contrast", x)]
    for one in stretched:
        np.testing.assert_allclose(one, np.median(one), rtol=0.02)
    assert 0.79 < min(map(np.median, stretched)) < 0.9 < 1.1 < max(map(np.median, stretched)) < 1.21


def test_all_together_keep_type_shape_and_range_and_depend_on_the_seed_alone():
    names = tuple(AUGMENTATIONS)
    for dtype in (np.uint8, np.float32):
        x = image(shape=(10, 7, 1), low=0, high=255).astype(dtype)
        change = tf.function(augmentation(*names))
        found = np.stack([change(tf.constant(x), seed) for seed in SEEDS])
        again = np.stack([change(tf.constant(x), seed) for seed in SEEDS])
        assert found.dtype == dtype and found.shape == (len(SEEDS), *x.shape)
        assert found.min() >= 0 and found.max() <= 255
        np.testing.assert_array_equal(found, again)
        assert len({one.tobytes() for one in found}) == len(SEEDS)


def test_without_names_images_stay_as_they_are():
    x = image(low=-400, high=400)
    np.testing.assert_array_equal(augmentation()(tf.constant(x), SEEDS[0]), x)


@pytest.mark.parametrize("names", ["flop", ("flip", "flop")])
def test_an_unknown_name_is_refused_with_the_nearest(names):
    with pytest.raises(ValueError, match="Did you mean 'flip'"):
        Batching(4, augment=names)

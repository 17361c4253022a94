"""Batches of arrays: order, flips, validation; files of arrays; handwritten digits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_tf.app.data import Shift, _shifted, arrays, digits, from_arrays
from elastic_tf.app.pipelines import Batching, split_off


def numbered(count=10, size=4):
    """Arrays whose images tell their number, brighter to the right."""
    x = np.zeros((count, size, size, 1), np.uint8)
    x += np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1) * 10
    x += np.arange(size, dtype=np.uint8).reshape(1, 1, -1, 1)
    return x, np.arange(count) % 2


def data(count=10, **options):
    return from_arrays(numbered(count), numbered(5), **{"batch_size": 4, "seed": 7, **options})


def order(batches):
    return [int(image.min()) // 10 for x, _ in batches for image in x.numpy()]


def test_training_batches_are_full_and_test_batches_complete():
    found = data()
    assert [len(y) for _, y in found.train] == [4, 4] == [4] * int(found.train.cardinality())
    assert [len(y) for _, y in found.test] == [4, 1]
    assert order(found.test) == [0, 1, 2, 3, 4]
    assert found.class_names == ("0", "1")


def test_train_has_another_order_at_each_pass_and_the_same_for_a_seed():
    first, again = data().train, data().train
    passes = [order(first), order(first)]
    assert passes[0] != passes[1]
    assert passes == [order(again), order(again)]
    assert order(data(seed=8).train) != passes[0]


def test_probe_leaves_the_order_of_train_alone():
    probed, alone = data(), data()
    next(iter(probed.probe))
    assert order(probed.train) == order(alone.train)
    assert order(probed.probe) != order(alone.train)


def test_flips_are_of_training_images_and_leave_their_labels():
    found = data(augment="flip")
    for x, y in found.train:
        np.testing.assert_array_equal(x.numpy().min(axis=(1, 2, 3)) // 10 % 2, y)
    for x, _ in found.test:
        assert (x[:, :, 0] < x[:, :, -1]).numpy().all()


@given(
    st.lists(st.integers(0, 4), min_size=20, max_size=60), st.floats(0.2, 0.9), st.integers(0, 5)
)
def test_a_split_takes_its_share_of_every_class_and_no_whole_class(labels, share, seed):
    labels = np.array(labels)
    left, taken = split_off(labels, Batching(1, seed=seed, validation_share=share))
    assert sorted([*left, *taken]) == list(range(len(labels)))
    assert set(labels[left]) == set(labels)
    for label in set(labels):
        count = (labels == label).sum()
        # at most one more or less than the share, and one that stays
        assert abs((labels[taken] == label).sum() - share * count) <= 2


def test_samples_are_the_training_images_and_flips_are_their_two_views():
    found = data(validation_share=0.25, augment="flip")
    samples = found.samples(memory=7)
    assert (samples.count, samples.views, samples.batch_size, samples.seed) == (8, 2, 4, 7)
    assert samples.memory == 7 and samples.arrays[0].dtype == np.uint8
    rows = np.arange(samples.rows)
    x, y = samples.take(rows)
    assert order([(x, y)]) == 2 * (stored := order([samples.arrays])) and len({*stored}) == 8
    np.testing.assert_array_equal(y, np.tile(samples.arrays[1], 2))
    is_flipped = (x[:, 0, 0, 0] > x[:, 0, -1, 0]).numpy()
    assert 2 <= is_flipped.sum() <= 14
    assert data().samples().augment is None


def test_validation_is_split_off_the_training_images():
    found = data(20, batch_size=2, validation_share=0.3)
    assert (found.train_count, found.test_count) == (14, 5)
    assert sorted(order(found.train) + order(found.validation)) == list(range(20))
    parts = [order(data(validation_share=0.4, seed=seed).validation) for seed in (0, 0, 1, 2)]
    assert parts[0] == parts[1] and len({tuple(part) for part in parts}) > 1
    assert data().validation is None


@pytest.mark.parametrize(
    ("part", "options", "received"),
    [
        (numbered(), {"batch_size": 11}, "10 images, batch_size=11"),
        (numbered(), {"validation_share": 1.0}, "below 1. Received: validation_share=1.0"),
        (numbered(), {"validation_share": 0.05}, "0.05 of 10 training images"),
        ((np.full((1, 4, 4, 1), np.inf), np.zeros(1, int)), {}, "must be finite .* in train"),
        ((np.zeros((2, 4, 4, 1)), np.array([0, -1])), {}, r"labels of 2 images .*: \[0, -1\]"),
        (numbered(size=6), {}, r"one shape.*\(6, 6, 1\) and \(4, 4, 1\)"),
    ],
)
def test_what_does_not_fit_is_refused(part, options, received):
    with pytest.raises(ValueError, match=received):
        from_arrays(part, numbered(5), **{"batch_size": 1, **options})


def write(path, **changes):
    x, y = numbered()
    stored = {"x_train": x, "y_train": y, "x_test": x[:5], "y_test": y[:5], **changes}
    np.savez(path, **{name: array for name, array in stored.items() if array is not None})
    return path


@pytest.mark.parametrize(
    ("shifts", "missing"), [((1, 1), r"0 to 3,.*none of \[0\]"), ((0, 3), r"0 to 5.*\[3, 4, 5\]")]
)
def test_classes_without_training_images_are_named(shifts, missing):
    x, y = np.zeros((6, 2, 2, 1), np.uint8), np.arange(6) % 3
    with pytest.warns(UserWarning, match=f"Each class, {missing}"):
        from_arrays(*((x, y + shift) for shift in shifts), batch_size=2)


def test_a_file_of_arrays_is_read_with_channels_and_labels_as_they_are_used(tmp_path):
    x, y = numbered()
    changes = {"x_train": x[..., 0], "y_train": np.uint8(y[:, np.newaxis])}
    (x_train, y_train), (x_test, y_test) = arrays(write(tmp_path / "a.npz", **changes))
    np.testing.assert_array_equal(x_train, x)
    np.testing.assert_array_equal(y_train, y)
    assert y_train.dtype == y_test.dtype == np.int64 and len(x_test) == len(y_test) == 5


@pytest.mark.parametrize(
    ("changes", "received"),
    [
        ({"y_test": None}, "without y_test; it holds x_train"),
        ({"x_train": np.zeros((10, 4))}, r"float64 of shape \(10, 4\) in train of '.*a.npz'"),
        ({"y_train": np.zeros(10)}, "labels of 10 images .*float64"),
        ({"y_train": np.zeros(9, int)}, r"labels of 10 images .*\(9,\)"),
        ({"x_train": np.array(["a"] * 10, object)}, "Object arrays"),
    ],
)
def test_a_file_whose_arrays_do_not_fit_is_refused(tmp_path, changes, received):
    with pytest.raises(ValueError, match=received):
        arrays(write(tmp_path / "a.npz", **changes))


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))  # a single array
    for content in (b"", b"PK\x03\x04 cut off", b"text", (tmp_path / "a.npy").read_bytes()):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match="must be an .npz file. Received: .*a.npz"):
            arrays(tmp_path / "a.npz")
    with pytest.raises(FileNotFoundError, match="nowhere.npz"):
        arrays(tmp_path / "nowhere.npz")


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

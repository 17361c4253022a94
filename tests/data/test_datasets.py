"""Pipelines over class folders and arrays."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tensorflow as tf
from test_images import GREEN, RED, plain, write_folder

from elastic_tf.data import datasets


def numbered(count=10, size=4):
    """Arrays whose images tell their number, brighter to the right."""
    x = np.zeros((count, size, size, 1), np.uint8)
    x += np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1) * 10
    x += np.arange(size, dtype=np.uint8).reshape(1, 1, -1, 1)
    return x, np.arange(count) % 2


def npy():
    """The bytes of a file with a single array."""
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


def data(**options):
    return datasets.from_arrays(numbered(), numbered(5), **{"batch_size": 4, "seed": 7, **options})


def order(batches):
    return [int(image.min()) // 10 for x, _ in batches for image in x.numpy()]


def folder(path, **options):
    return datasets.image_folder(path, **{"image_size": 8, "batch_size": 4, **options})


def test_image_folder_gives_batches_of_the_images(tmp_path):
    found = folder(write_folder(tmp_path))
    assert found.class_names == ("green", "red") and found.classes == 2
    assert (found.train_count, found.test_count, found.steps_per_epoch) == (6, 4, 1)
    assert found.image_shape == (8, 8, 3)
    x, y = next(iter(found.test))
    assert x.dtype == "float32" and y.dtype == "int64"
    np.testing.assert_array_equal(y, [0, 0, 1, 1])
    np.testing.assert_array_equal(x[0], plain(GREEN, 8))
    np.testing.assert_array_equal(x[3], plain(RED, 8))


def test_image_folder_yields_the_same_with_and_without_cache(tmp_path):
    write_folder(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 14, 3), np.uint8)
    for index in range(3):
        content = tf.io.encode_png(np.roll(pixels, index, axis=0)).numpy()
        (tmp_path / "train" / "red" / f"{index}.png").write_bytes(content)
    cached, read = (folder(tmp_path, cache=cache, flip=True) for cache in (True, False))
    for first, second in zip(cached.train.repeat(3), read.train.repeat(3)):
        np.testing.assert_array_equal(first[0], second[0])
        np.testing.assert_array_equal(first[1], second[1])


def test_image_folder_reports_what_it_skipped(tmp_path):
    bad = write_folder(tmp_path) / "train" / "red" / "bad.jpg"
    bad.write_bytes(b"no image")
    with pytest.raises(ValueError, match="bad.jpg"):
        folder(tmp_path)
    found = folder(tmp_path, on_bad_image="skip")
    assert found.skipped == (str(bad),) and found.train_count == 6


def test_training_batches_are_full_and_test_batches_complete():
    assert [len(y) for _, y in data().train] == [4, 4]
    assert [len(y) for _, y in data().test] == [4, 1]
    assert int(data().train.cardinality()) == 2


def test_train_has_another_order_at_each_pass_and_the_same_for_a_seed():
    first, again = data().train, data().train
    passes = [order(first), order(first)]
    assert passes[0] != passes[1]
    assert passes == [order(again), order(again)]
    assert order(data(seed=8).train) != passes[0]


def test_every_image_keeps_its_label():
    for x, y in data(flip=True).train:
        np.testing.assert_array_equal(x.numpy().min(axis=(1, 2, 3)) // 10 % 2, y)


def test_test_has_a_fixed_order():
    assert order(data().test) == [0, 1, 2, 3, 4]


def test_probe_leaves_the_order_of_train_alone():
    probed, alone = data(), data()
    next(iter(probed.probe))
    assert order(probed.train) == order(alone.train)
    assert order(probed.probe) != order(alone.train)


def test_flip_mirrors_about_half_of_the_training_images_left_to_right():
    found = data(flip=True)
    mirrored = [
        bool(image[0, 0, 0] > image[0, -1, 0])
        for x, _ in found.train.repeat(25)
        for image in x.numpy()
    ]
    # 200 fair draws: outside of these bounds once in ten million.
    assert 63 <= sum(mirrored) <= 137
    for x, _ in found.test:
        assert (x[:, :, 0] < x[:, :, -1]).numpy().all()


def test_from_arrays_names_classes_by_their_labels():
    assert data().class_names == ("0", "1")
    assert data(class_names=("even", "odd")).class_names == ("even", "odd")


def test_from_arrays_takes_an_array_of_names():
    assert data(class_names=np.array(["even", "odd"])).class_names == ("even", "odd")


@pytest.mark.parametrize(
    ("part", "received"),
    [
        ((np.zeros((10, 4, 4)), np.zeros(10, int)), r"`train\[0\]`.*float64 of shape \(10, 4, 4\)"),
        ((np.full((1, 4, 4, 1), np.inf), np.zeros(1, int)), r"`train\[0\]` must be finite"),
        ((np.zeros((2, 4, 4, 1)), np.array([0, -1])), r"`train\[1\]` must be 2 .*: \[0, -1\]"),
        (numbered(size=6), r"one shape.*\(6, 6, 1\) and \(4, 4, 1\)"),
    ],
)
def test_from_arrays_refuses_what_does_not_fit(part, received):
    with pytest.raises(ValueError, match=received):
        datasets.from_arrays(part, numbered(5), batch_size=1)


def test_from_arrays_takes_digits():
    found = datasets.from_arrays(*datasets.digits(), batch_size=16)
    assert found.image_shape == (32, 32, 1) and found.classes == 10


def test_image_data_refuses_fewer_images_than_a_batch():
    with pytest.raises(ValueError, match="10 images, batch_size=11"):
        data(batch_size=11)


@pytest.mark.parametrize(
    ("options", "received"),
    [
        ({"image_size": 0}, "`image_size`.*Received: 0"),
        ({"image_size": 8.0}, "`image_size`.*Received: 8.0"),
        ({"batch_size": True}, "`batch_size`.*Received: True"),
        ({"validation_share": 1.0}, "`validation_share`.*Received: validation_share=1.0"),
        ({"on_bad_image": "ignore"}, "raise, skip. Received: on_bad_image='ignore'"),
    ],
)
def test_image_folder_refuses_settings_before_it_decodes(tmp_path, options, received):
    (write_folder(tmp_path) / "train" / "red" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match=received):
        folder(tmp_path, **options)


def write_arrays(path, **changes):
    x, y = numbered()
    stored = {"x_train": x, "y_train": y, "x_test": x[:5], "y_test": y[:5], **changes}
    np.savez(path, **{name: array for name, array in stored.items() if array is not None})
    return path


def test_arrays_reads_what_was_saved(tmp_path):
    x, y = numbered()
    (x_train, y_train), (x_test, y_test) = datasets.arrays(write_arrays(tmp_path / "a.npz"))
    np.testing.assert_array_equal(x_train, x)
    np.testing.assert_array_equal(y_train, y)
    assert y_test.dtype == np.int64 and len(x_test) == len(y_test) == 5


def test_arrays_adds_a_channel(tmp_path):
    x, _ = numbered()
    path = write_arrays(tmp_path / "a.npz", x_train=x[..., 0], x_test=x[:5, ..., 0])
    assert datasets.arrays(path)[0][0].shape == (10, 4, 4, 1)


def test_arrays_takes_labels_in_one_column(tmp_path):
    _, y = numbered()
    path = write_arrays(tmp_path / "a.npz", y_train=y[:, np.newaxis].astype(np.uint8))
    read = datasets.arrays(path)[0][1]
    assert read.dtype == np.int64
    np.testing.assert_array_equal(read, y)


@pytest.mark.parametrize(
    ("changes", "received"),
    [
        ({"y_test": None}, "without y_test; it holds x_train"),
        ({"x_train": np.zeros((10, 4))}, r"`x_train`.*float64 of shape \(10, 4\) in '.*a.npz'"),
        ({"x_train": np.zeros((0, 4, 4, 1))}, r"`x_train`.*\(0, 4, 4, 1\)"),
        ({"x_train": np.full((10, 4, 4, 1), np.nan)}, "`x_train` must be finite"),
        ({"y_train": np.zeros(10)}, "`y_train` must be 10 integers.*float64"),
        ({"y_train": np.zeros(9, int)}, r"`y_train` must be 10 integers.*\(9,\)"),
        ({"y_train": np.full(10, -1)}, "`y_train` must be 10 integers from 0"),
        ({"x_test": np.zeros((5, 6, 6, 1))}, r"one shape.*\(4, 4, 1\) and \(6, 6, 1\)"),
        ({"x_train": np.array(["a"] * 10, object)}, "Object arrays"),
    ],
)
def test_arrays_refuses_what_does_not_fit(tmp_path, changes, received):
    path = write_arrays(tmp_path / "a.npz", **changes)
    with pytest.raises(ValueError, match=received):
        datasets.arrays(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"text", b"\x93NUMPY\x01", npy()])
def test_arrays_refuses_a_file_that_is_no_npz(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match="must be an .npz file. Received: .*a.npz"):
        datasets.arrays(tmp_path / "a.npz")


def test_arrays_refuses_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.npz"):
        datasets.arrays(tmp_path / "nowhere.npz")


def classes_of(part):
    return np.bincount(np.concatenate([y.numpy() for _, y in part]), minlength=2)


def test_validation_is_split_off_the_training_images_class_by_class():
    found = datasets.from_arrays(numbered(20), numbered(5), batch_size=2, validation_share=0.3)
    assert (found.train_count, found.validation_count, found.test_count) == (14, 6, 5)
    np.testing.assert_array_equal(classes_of(found.validation), [3, 3])
    assert sorted(order(found.train) + order(found.validation)) == list(range(20))
    assert order(found.test) == [0, 1, 2, 3, 4]


def test_validation_is_another_one_for_another_seed():
    parts = [order(data(validation_share=0.4, seed=seed).validation) for seed in (0, 0, 1, 2, 3)]
    assert parts[0] == parts[1]
    assert len({tuple(part) for part in parts}) > 1


def test_image_folder_splits_off_a_validation_part(tmp_path):
    write_folder(tmp_path)
    found = folder(tmp_path, validation_share=0.34, batch_size=2)
    assert (found.train_count, found.validation_count, found.test_count) == (4, 2, 4)
    assert all(len(x) for x, _ in found.validation)


@pytest.mark.parametrize("share", [-0.1, 1.0, True])
def test_validation_share_is_refused_out_of_range(share):
    with pytest.raises(ValueError, match=rf"below 1. Received: validation_share={share}"):
        data(validation_share=share)


def test_a_validation_part_without_an_image_is_refused():
    with pytest.raises(ValueError, match="0.05 of 10 training images"):
        data(validation_share=0.05)

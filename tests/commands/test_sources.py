"""The images that a training takes, by name."""

from __future__ import annotations

import numpy as np
import pytest

from elastic_tf.commands.training import sources


def load(source, **options):
    return sources.load(
        str(source), **{"channels": 3, "image_size": 16, "batch_size": 4, **options}
    )


def saved(path, channels=1, size=8):
    x = np.random.default_rng(0).integers(0, 256, (12, size, size, channels), np.uint8)
    y = np.arange(12) % 3
    np.savez(path, x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return path


@pytest.mark.parametrize("name", sources.DOMAINS)
def test_digits_have_the_channels_of_the_model(name):
    for channels in (1, 3):
        found = load(name, channels=channels)
        assert found.image_shape == (16, 16, channels)
        assert found.classes == 10


def test_domains_of_the_digits_differ():
    first = [next(iter(load(name).test))[0].numpy().tobytes() for name in sources.DOMAINS]
    assert len(set(first)) == len(sources.DOMAINS)


@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_are_resized(tmp_path, channels):
    found = load(saved(tmp_path / "a.npz", channels), validation_share=0.25)
    assert found.image_shape == (16, 16, 3)
    assert (found.train_count, found.validation_count, found.test_count) == (9, 3, 6)


def test_arrays_of_the_right_size_stay_as_they_are(tmp_path):
    path = saved(tmp_path / "a.npz", channels=3, size=16)
    x, _ = next(iter(load(path).test))
    np.testing.assert_array_equal(x, np.load(path)["x_test"][:4])


@pytest.mark.parametrize(
    ("source", "options", "received"),
    [
        ("digits:upside_down", {}, "digits:shifted.*Received: 'digits:upside_down'"),
        ("tfds:mnist", {}, "caltech_birds2011.*Received: name='mnist'"),
        ("folder", {"channels": 1}, "Received: 'folder' for a model that takes grey"),
    ],
)
def test_names_that_do_not_fit_are_refused(source, options, received):
    with pytest.raises(ValueError, match=received):
        load(source, **options)


def test_what_is_not_there_gets_the_known_names():
    with pytest.raises(FileNotFoundError, match="digits:shifted.*'cats'.*tfds:stanford_dogs"):
        load("cats")


def test_colour_arrays_are_refused_for_a_grey_model(tmp_path):
    with pytest.raises(ValueError, match="1 channels. Received: 3 channels"):
        load(saved(tmp_path / "a.npz", channels=3), channels=1)


def test_augmentations_are_read_from_a_command_line():
    assert sources.augmentations("none") == sources.augmentations("") == ()
    assert sources.augmentations("mixup, cutmix") == ("mixup", "cutmix")


def test_images_from_0_to_1_are_refused_for_networks_that_scale_themselves(tmp_path):
    y = np.arange(6) % 3
    x = np.random.default_rng(0).uniform(size=(6, 8, 8, 3)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(ValueError, match="float32 from 0.* to 0.9.* Multiply x_train and x_test"):
        load(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x_train=255 * x, y_train=y, x_test=255 * x, y_test=y)
    assert load(tmp_path / "a.npz").classes == 3

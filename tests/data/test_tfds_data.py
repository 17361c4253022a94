"""The loaders of TensorFlow Datasets on made-up images."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from elastic_tf.app.commands import commandline, harness, settings
from elastic_tf.app.data import tfds_classes, tfds_images

COUNT = 20  # images in each split of a made-up data set
CLASSES = {"caltech_birds2011": 200, "mnist": 10}


def plain(self, split, decoders=None, **kwargs):
    """Images of one grey and odd sizes: 100 to 119 in the training split, from 0 in the test."""
    name, first, last = re.fullmatch(r"(\w+)(?:\[(\d*)%?:(\d*)%?\])?", split).groups()
    numbers = range(int(first or 0) * COUNT // 100, int(last or 100) * COUNT // 100)

    def examples():
        for number in numbers:
            grey = number + (100 if name == "train" else 0)
            pixels = np.full((7 + number, 9, 3), grey, np.uint8)
            yield {"image": tf.io.encode_png(pixels).numpy(), "label": number}

    features = decoders.extract_features(self.info.features)
    types = {"image": tf.string, "label": features["label"].dtype}
    data = tf.data.Dataset.from_generator(examples, types, {"image": (), "label": ()})
    return data.apply(tf.data.experimental.assert_cardinality(len(numbers)))


@pytest.fixture
def greys():
    with tfds.testing.mock_data(as_dataset_fn=plain):
        yield


def read(batches):
    """The grey of each image, in order; every image has its label."""
    found = []
    for x, y in batches:
        grey = x.numpy().mean(axis=(1, 2, 3)).astype(int)
        np.testing.assert_array_equal(grey % 100, y)
        found += list(grey)
    return found


def pets(**options):
    return tfds_images("oxford_iiit_pet", **{"image_size": 8, "batch_size": 5, **options})


@pytest.mark.parametrize("name", CLASSES)
def test_tfds_images_reads_each_data_set(name):
    with tfds.testing.mock_data(num_examples=3):
        data = tfds_images(name, image_size=16, batch_size=2, augment="flip")
        x, y = next(iter(data.train))
    assert x.shape == (2, 16, 16, 3) and x.dtype == tf.float32
    assert y.dtype == tf.int64
    assert data.classes == len(data.class_names) == tfds_classes(name) == CLASSES[name]


def test_validation_is_split_off_the_training_split_and_test_is_whole(greys):
    data = pets(validation_share=0.25)
    assert (data.train_count, data.test_count) == (15, 20)
    assert data.steps_per_epoch == 3
    assert read(data.validation) == list(range(100, 105))
    assert sorted(read(data.train)) == list(range(105, 120))
    assert read(data.test) == list(range(20))
    whole = pets(validation_share=0)
    assert whole.validation is None and whole.train_count == COUNT


def test_train_script_takes_a_data_set_by_its_name(greys, tmp_path):
    arguments = ["--data", "tfds:oxford_iiit_pet", "--out", str(tmp_path), "--input-size", "8"]
    arguments += ["--batch-size", "2"]
    _, data = harness.with_images(commandline.parse(settings.Train, "", arguments))
    assert data.train.element_spec[0].shape == (2, 8, 8, 3)
    assert data.validation.cardinality() == 1


def test_what_cannot_be_downloaded_gets_the_manual_way(greys, monkeypatch):
    def unreachable(self):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", unreachable)
    with pytest.raises(FileNotFoundError, match="no route to host.*tfds build oxford.*TFDS_"):
        pets()


@pytest.mark.parametrize(
    ("splits", "test", "validation"),
    [
        (("train", "test", "validation"), range(20), range(100, 105)),
        (("train", "validation"), range(20), range(100, 105)),
        (("train",), range(116, 120), range(100, 104)),
    ],
)
def test_the_test_images_are_those_of_the_best_split_there_is(
    splits, test, validation, greys, monkeypatch
):
    known = [tfds.core.SplitInfo(name=one, shard_lengths=[20], num_bytes=0) for one in splits]
    known = tfds.core.splits.SplitDict(known)
    monkeypatch.setattr(tfds.core.DatasetInfo, "splits", property(lambda _: known))
    data = pets(validation_share=0.25)
    parts = [read(part) for part in (data.validation, data.test)]
    assert parts == [list(validation), list(test)]
    rest = {*range(100, 120)} - {*parts[0], *parts[1]}
    assert set(read(data.train)) <= rest and data.train_count == len(rest)


@pytest.mark.parametrize(
    ("name", "received"),
    [
        ("mnits", "name='mnits'. Did you mean 'mnist'"),
        ("celeb_a", "Received: 'celeb_a', which has image, landmarks"),
        ("ag_news_subset", "one class each. Received: 'ag_news_subset'"),
    ],
)
def test_what_is_no_set_of_classified_images_is_refused(name, received):
    with pytest.raises(ValueError, match=received):
        tfds_images(name, batch_size=2)

"""The loaders of TensorFlow Datasets on made-up images."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from elastic_tf.commands import train
from elastic_tf.commands.training import work
from elastic_tf.data import tfds as tfds_data
from elastic_tf.data.tfds import tfds_images

COUNT = 20  # images in each split of a made-up data set
CLASSES = {"caltech_birds2011": 200, "oxford_iiit_pet": 37, "stanford_dogs": 120}


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


@pytest.mark.parametrize("name", tfds_data.NAMES)
def test_tfds_images_reads_each_data_set(name):
    with tfds.testing.mock_data(num_examples=3):
        data = tfds_images(name, image_size=16, batch_size=2, flip=True)
        x, y = next(iter(data.train))
    assert x.shape == (2, 16, 16, 3) and x.dtype == tf.float32
    assert y.dtype == tf.int64
    assert data.classes == len(data.class_names) == CLASSES[name]


def test_validation_is_split_off_the_training_split_and_test_is_whole(greys):
    data = pets(validation_share=0.25)
    assert (data.train_count, data.test_count) == (15, 20)
    assert data.steps_per_epoch == 3
    assert read(data.validation) == list(range(100, 105))
    assert sorted(read(data.train)) == list(range(105, 120))
    assert read(data.test) == list(range(20))
    whole = pets(validation_share=0)
    assert whole.validation is None and whole.train_count == COUNT


def test_train_has_another_order_at_each_pass_and_the_same_for_a_seed(greys):
    first, again, other = pets(seed=1), pets(seed=1), pets(seed=2)
    passes = [read(first.train), read(first.train)]
    assert passes[0] != passes[1]
    assert passes == [read(again.train), read(again.train)]
    assert read(other.train) != passes[0]
    assert read(first.probe) != passes[0]


def test_train_script_takes_a_data_set_by_its_name(greys, tmp_path):
    arguments = ["--data", "tfds:oxford_iiit_pet", "--out", str(tmp_path), "--input-size", "8"]
    settings = train.parse(train.Settings, "", arguments)
    data = work.loaded(settings, batch_size=2)
    assert data.train.element_spec[0].shape == (2, 8, 8, 3)
    assert data.validation.cardinality() == 1


def test_what_cannot_be_downloaded_gets_the_manual_way(greys, monkeypatch):
    def unreachable(self):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", unreachable)
    with pytest.raises(FileNotFoundError, match="no route to host.*tfds build oxford.*TFDS_"):
        pets()


def test_tfds_images_names_the_known_data_sets():
    with pytest.raises(ValueError, match="caltech_birds2011, .*Received: name='mnist'"):
        tfds_images("mnist", batch_size=2)

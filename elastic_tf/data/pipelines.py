"""From sources of images to batches: shuffled and augmented for training, in order otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.data import augmentation
from elastic_tf.data.augmenting import augmented
from elastic_tf.timing.runtime import usable_cores

_WORKERS = max(usable_cores(), 2)  # images decoded at a time
_MOST_SEED = 2**62  # another one is this and 1
_AHEAD = 4  # batches made in advance

Load = Callable[[Any], tuple[tf.Tensor, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class ImageData:
    """Images and labels, batched: float32 (batch, height, width, channels) of 0 to 255, int64.

    Where training images are mixed, the labels of all parts are shares: float32 (batch, classes).

    Attributes:
        train: shuffled anew at every pass in an order fixed by the seed; every batch is full.
        test: in a fixed order; the last batch may be smaller.
        probe: the training images in another order; draws from it leave the order of `train`
            alone, so that runs with and without a probe see the same batches.
        class_names: names by label.
        train_count: images in the training part.
        test_count: images in the test part.
        batch_size: images in a training batch.
        image_shape: height, width, channels.
        skipped: files that are no images and were left out.
        validation: a part split off the training images, in a fixed order; None without one.
        validation_count: images in the validation part.
        one_hot: whether labels are shares of the classes.
    """

    train: tf.data.Dataset
    test: tf.data.Dataset
    probe: tf.data.Dataset
    class_names: tuple[str, ...]
    train_count: int
    test_count: int
    batch_size: int
    image_shape: tuple[int, int, int]
    skipped: tuple[str, ...] = ()
    validation: tf.data.Dataset | None = None
    validation_count: int = 0
    one_hot: bool = False

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def steps_per_epoch(self) -> int:
        """Training batches in one pass."""
        return self.train_count // self.batch_size


@dataclasses.dataclass(frozen=True)
class Source:
    """Images before they are loaded.

    Attributes:
        examples: what is known of each image, in a fixed order.
        load: makes of it the image, uint8 or float, and the label.
        count: images.
        shuffled: examples among which the next one is drawn in training.
    """

    examples: tf.data.Dataset
    load: Load
    count: int
    shuffled: int


def check(
    batch_size: int, seed: int, flip: bool, augment: Sequence[str], validation_share: float
) -> None:
    """Refuse settings of the pipelines that cannot be used, before any image is read.

    Raises:
        ValueError: one is out of range.
        TypeError: one is of another kind.
    """
    arguments.count("batch_size", batch_size)
    arguments.count("seed", seed, least=0, most=_MOST_SEED)
    arguments.flag("flip", flip)
    augmentation.check(augment, batch_size)
    arguments.number("validation_share", validation_share, low=0.0, high=1.0, below=True)


def batched(
    train: Source,
    test: Source,
    *,
    validation: Source | None = None,
    class_names: Sequence[str],
    image_shape: tuple[int, ...],
    batch_size: int,
    seed: int,
    flip: bool,
    augment: Sequence[str] = (),
    skipped: tuple[str, ...] = (),
) -> ImageData:
    """The pipelines over the sources of a data set; the settings are those that `check` lets pass.

    Raises:
        ValueError: fewer training images than a batch.
    """
    if train.count < batch_size:
        raise ValueError(
            f"There must be at least one full batch of training images. Received: {train.count} "
            f"images, batch_size={batch_size}. Use a smaller batch."
        )
    height, width, channels = image_shape
    one_hot = augmentation.mixes(augment)

    def training(order_seed: int) -> tf.data.Dataset:
        batches = _training(train, batch_size, order_seed, flip)
        if one_hot:
            batches = batches.map(shares)
        return _ahead(augmented(batches, augment, seed=order_seed))

    def in_order(source: Source) -> tf.data.Dataset:
        batches = _batches(source.examples, source.load, batch_size, drop_remainder=False)
        if one_hot:
            batches = batches.map(shares)
        return _ahead(batches)

    def shares(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return x, tf.one_hot(y, len(class_names))

    return ImageData(
        train=training(seed),
        test=in_order(test),
        probe=training(seed + 1),
        class_names=tuple(class_names),
        train_count=train.count,
        test_count=test.count,
        batch_size=batch_size,
        image_shape=(height, width, channels),
        skipped=skipped,
        validation=None if validation is None else in_order(validation),
        validation_count=validation.count if validation else 0,
        one_hot=one_hot,
    )


def _training(source: Source, batch_size: int, seed: int, flip: bool) -> tf.data.Dataset:
    """Full batches in a seeded order."""
    # One seeded number for each image: ops with a state would depend on the threads' order.
    draws = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)

    def load(example: Any, draw: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x, y = source.load(example)
        if flip:
            x = tf.cond(draw % 2 == 0, lambda: x, lambda: tf.reverse(x, axis=[1]))
        return x, y

    order = source.examples.shuffle(source.shuffled, seed=seed)
    return _batches(tf.data.Dataset.zip((order, draws)), load, batch_size, drop_remainder=True)


def _batches(
    order: tf.data.Dataset, load: Callable[..., Any], batch_size: int, *, drop_remainder: bool
) -> tf.data.Dataset:
    """What `load` makes of every element of `order`, in batches of float32."""
    return (
        order.map(load, _WORKERS)
        .batch(batch_size, drop_remainder=drop_remainder)
        .map(lambda x, y: (tf.cast(x, tf.float32), y))
    )


def _ahead(batches: tf.data.Dataset) -> tf.data.Dataset:
    """The batches, some of them made in advance.

    Without tf.data's tuning: its thread sleeps up to a minute, and TensorFlow 2.15 sometimes waits
    for it at the end of an epoch (9.5 s in trainings of a minute).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.prefetch(_AHEAD).with_options(options)

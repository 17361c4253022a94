"""From images to batches: shuffled and changed at random for training, in order otherwise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.files import quarter_of_memory
from elastic_tf.timing import usable_cores
from elastic_tf.train.samples import Samples

_WORKERS = max(usable_cores(), 2)  # images decoded at a time
_MOST_SEED = 2**62  # another one is this and 1
_AHEAD = 4  # batches made in advance
_TURN = 0.3  # radians at most, 17 degrees
_LIGHT = 0.2  # of the range of pixels; and of the distance from the mean


@dataclasses.dataclass(frozen=True)
class Batching:
    """How images become batches: the same options for every source."""

    batch_size: int
    seed: int = 0  #: of the order, the changes and the split
    augment: tuple[str, ...] = ()  #: random changes of training images, as of `augmentation`
    validation_share: float = 0.0  #: of the training images; of each class of folders and arrays

    def __post_init__(self) -> None:
        arguments.count("batch_size", self.batch_size)
        arguments.count("seed", self.seed, least=0, most=_MOST_SEED)
        if isinstance(self.augment, str):
            object.__setattr__(self, "augment", (self.augment,))
        augmentation(*self.augment)
        arguments.part("validation_share", self.validation_share)


@dataclasses.dataclass(frozen=True)
class ImageData:
    """Images and labels, batched: float32 (batch, height, width, channels) of 0 to 255, int64.

    `train` is shuffled anew at every pass in an order fixed by the seed, in full batches; `probe`
    has the same images in another order. `test` and `validation` have a fixed order, and may end
    in a smaller batch.
    """

    train: tf.data.Dataset
    test: tf.data.Dataset
    probe: tf.data.Dataset
    validation: tf.data.Dataset | None  #: split off the training images
    class_names: tuple[str, ...]  #: by label
    train_count: int
    test_count: int
    validation_count: int
    images: tf.data.Dataset  #: those of `train` one by one, as they are stored, in a fixed order
    batching: Batching
    skipped: tuple[str, ...] = ()  #: files that are no images

    def samples(self, **options: Any) -> Samples:
        """The training images in memory, with numbers, for `model.fit(data.samples())`.

        Pixels keep the type in which they are stored: functional models cast them. `options` are
        those of `Samples`; by default batches, seed and changes are those of `train`.
        """
        given = {"batch_size": self.batching.batch_size, "seed": self.batching.seed, **options}
        if self.batching.augment:
            given = {"augment": augmentation(*self.batching.augment), "views": 2, **given}
        return Samples(self.images, **given)

    @property
    def fits_memory(self) -> bool:
        """Whether the training images, in bytes, take at most a quarter of the memory."""
        return fits_memory(self.train_count, self.images.element_spec[0].shape)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def steps_per_epoch(self) -> int:
        """Training batches in one pass."""
        return len(self.train)


class Source(NamedTuple):
    """Images before they are loaded."""

    examples: tf.data.Dataset  # what is known of each image, in a fixed order
    load: Callable[[Any], tuple[tf.Tensor, tf.Tensor]]  # makes of it the image and its label


def fits_memory(count: int, shape: Sequence[int]) -> bool:
    """Whether so many images of bytes take at most a quarter of the machine's memory."""
    return count * math.prod(shape) <= quarter_of_memory()


def from_rows(
    train: tuple[Any, np.ndarray],
    test: tuple[Any, np.ndarray],
    *,
    batching: Batching,
    decode: Callable[[Any], Any] = lambda image: image,
    **options: Any,
) -> ImageData:
    """Batches of (x, y) with an image for each row of x, or what `decode` makes one of.

    `decode` is of TensorFlow's operations; `options` are those of `batched`.
    """
    left, held_out = split_off(train[1], batching)

    def sources(x: Any, y: np.ndarray, *parts: np.ndarray) -> list[Source]:
        with tf.device("cpu"):
            images, labels = tf.constant(x), tf.constant(y)  # one copy for all parts

        def load(row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return decode(images[row]), labels[row]

        # numbers are shuffled, not images
        return [Source(tf.data.Dataset.from_tensor_slices(rows), load) for rows in parts]

    source, validation = sources(*train, left, held_out)
    (tested,) = sources(*test, np.arange(len(test[1])))
    return batched(source, tested, validation, batching=batching, **options)


def split_off(labels: np.ndarray, batching: Batching) -> tuple[np.ndarray, np.ndarray]:
    """Rows that stay, and rows drawn for validation, about `validation_share` of each class.

    One of each class always stays. A share that would give an empty part is refused.
    """
    rows, share = np.arange(len(labels)), batching.validation_share
    # Class after class, each in random order; then every row that fills up one more whole.
    mixed = np.random.default_rng(batching.seed).permutation(rows)
    ordered = mixed[np.argsort(labels[mixed], kind="stable")]
    filled = np.floor(share * np.arange(len(rows) + 1) + 1e-9)
    is_first = np.diff(labels[ordered], prepend=-1) != 0
    taken = (np.diff(filled) > 0) & ~is_first
    if share and not taken.any():
        raise ValueError(
            f"The validation part must hold an image. Received: `validation_share` {share:g} of "
            f"{len(rows)} training images. Use a larger share, or 0 for no such part."
        )
    return np.sort(ordered[~taken]), np.sort(ordered[taken])


def batched(
    train: Source,
    test: Source,
    validation: Source | None,
    *,
    batching: Batching,
    class_names: Sequence[str],
    window: int | None = None,
    skipped: Sequence[str] = (),
) -> ImageData:
    """The pipelines over the sources of a data set, which holds at least one batch.

    The next training image is drawn among `window` of them; None: among all.
    """
    size, count = batching.batch_size, len(train.examples)
    if count < size:
        raise ValueError(
            f"There must be at least one full batch of training images. Received: {count} "
            f"images, batch_size={size}. Use a smaller batch."
        )

    def batches(order: tf.data.Dataset, load: Callable[..., Any], *, full: bool) -> tf.data.Dataset:
        made = order.map(load, _WORKERS).batch(size, drop_remainder=full)
        # Without tf.data's tuning: its thread sleeps up to a minute, and TensorFlow 2.15 sometimes
        # waits for it at the end of an epoch (9.5 s in trainings of a minute).
        options = tf.data.Options()
        options.autotune.enabled = False
        made = made.map(lambda x, y: (tf.cast(x, tf.float32), y))
        return made.prefetch(_AHEAD).with_options(options)

    augment = augmentation(*batching.augment)

    def training(seed: int) -> tf.data.Dataset:
        def load(example: Any, draw: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            x, y = train.load(example)
            return augment(x, tf.stack([draw, seed])), y

        # One seeded number for each image: ops with a state would depend on the threads' order.
        draws = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
        order = train.examples.shuffle(window or count, seed=seed)
        return batches(tf.data.Dataset.zip((order, draws)), load, full=True)

    def in_order(source: Source | None) -> tf.data.Dataset | None:
        return batches(*source, full=False) if source and len(source.examples) else None

    return ImageData(
        train=training(batching.seed),
        test=in_order(test),
        probe=training(batching.seed + 1),
        validation=in_order(validation),
        class_names=tuple(class_names),
        train_count=count,
        test_count=len(test.examples),
        validation_count=len(validation.examples) if validation else 0,
        images=train.examples.map(train.load, _WORKERS),
        batching=batching,
        skipped=tuple(skipped),
    )


def augmentation(*names: str) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """A function for `Samples(augment=)`: (image, seed) -> image, changed by these, in this order.

    Images are (height, width, channels) of 0 to 255 and keep their type; seeds have shape (2,).
    "flip": mirrored left to right in half of the cases; "crop": a window of eight ninths, made as
    large as the image; "rotate": by up to 17 degrees, mirrored at its edges; "brightness" and
    "contrast": up to a fifth more or less. A ValueError says which names there are.
    """
    for name in names:
        arguments.choice("augment", name, tuple(AUGMENTATIONS))

    def changed(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        x = tf.cast(image, tf.float32) if names else image
        for place, name in enumerate(names):
            x = AUGMENTATIONS[name](x, tf.random.experimental.stateless_fold_in(seed, place))
        x = tf.ensure_shape(x, image.shape)
        return tf.cast(x if image.dtype.is_floating else tf.round(x), image.dtype)

    return changed


def _cropped(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(x)
    larger = tf.image.resize(x, shape[:2] + tf.maximum(shape[:2] // 8, 1))
    return tf.image.stateless_random_crop(larger, shape, seed)


def _rotated(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    angle = tf.random.stateless_uniform((), seed, -_TURN, _TURN)
    cos, sin = tf.cos(angle), tf.sin(angle)
    size = tf.shape(x)[:2]
    down, right = tf.unstack(tf.cast(size - 1, tf.float32) / 2)  # the middle
    # where in the image each pixel of the result comes from
    across = [cos, -sin, right - cos * right + sin * down]
    along = [sin, cos, down - sin * right - cos * down]
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=x[None],
        transforms=tf.stack([*across, *along, 0.0, 0.0])[None],
        output_shape=size,
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="REFLECT",
    )[0]


def _clipped(change: Callable[..., tf.Tensor], *sizes: float) -> Callable[..., tf.Tensor]:
    return lambda x, seed: tf.clip_by_value(change(x, *sizes, seed), 0, 255)


AUGMENTATIONS = {
    "flip": tf.image.stateless_random_flip_left_right,
    "crop": _cropped,
    "rotate": _rotated,
    "brightness": _clipped(tf.image.stateless_random_brightness, 255 * _LIGHT),
    "contrast": _clipped(tf.image.stateless_random_contrast, 1 - _LIGHT, 1 + _LIGHT),
}

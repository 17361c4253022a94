"""Augmentation of training batches by KerasCV: mixing images and labels, and RandAugment.

Every draw is seeded. KerasCV draws from ops and generators that keep a state, therefore batches
are augmented one after the other: with several at a time the draws would depend on the threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf.data.augmentation import NAMES

# Settings of the papers on ImageNet, where a model learns for long; KerasCV's defaults.
_CUTMIX_ALPHA, _MIXUP_ALPHA = 1.0, 0.2
_MAGNITUDE = 0.3  # of RandAugment: 9 of 30, its paper's for ResNet50


def augmented(batches: tf.data.Dataset, names: Sequence[str], *, seed: int) -> tf.data.Dataset:
    """The batches with their images augmented, other ones at each pass.

    Args:
        batches: float32 images of 0 to 255, (batch, height, width, 1 or 3), and labels, one-hot if
            `augmentation.mixes(names)`.
        names: of `augmentation.NAMES`; applied in its order, each at most once.
        seed: of the draws.

    CutMix of KerasCV 0.9 counts a cut as a whole in the label, also where it reaches over the edge
    of the image.

    Sources: Yun et al., CutMix, ICCV 2019; Zhang et al., mixup, ICLR 2018; Cubuk et al.,
    RandAugment, NeurIPS 2020.
    """
    for place, name in enumerate(NAMES):
        if name in names:
            batches = _BY_NAME[name](batches, seed + place)
    return batches


def _rand_augment(batches: tf.data.Dataset, seed: int) -> tf.data.Dataset:
    import keras_cv  # seconds to import: only for those who need it

    layer = keras_cv.layers.RandAugment((0, 255), magnitude=_MAGNITUDE, seed=seed)
    generator = tf.random.Generator.from_seed(seed)

    def function(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        is_grey = x.shape[-1] == 1
        with _drawn_from(generator):
            image = layer(tf.image.grayscale_to_rgb(x) if is_grey else x, training=True)
        # colour operations leave the range by rounding errors
        image = tf.clip_by_value(image[..., :1] if is_grey else image, 0, 255)
        return tf.ensure_shape(image, x.shape), y

    # Image by image: in a batch the layer draws for several at a time.
    size = next(iter(batches.element_spec)).shape[0]
    return batches.unbatch().map(function).batch(size, drop_remainder=True)


def _mixed(kind: str, alpha: float) -> Callable[[tf.data.Dataset, int], tf.data.Dataset]:
    """What mixes the images of each batch by the layer `kind` of KerasCV."""

    def mix(batches: tf.data.Dataset, seed: int) -> tf.data.Dataset:
        import keras_cv  # seconds to import: only for those who need it

        layer = getattr(keras_cv.layers, kind)(alpha, seed=seed)
        generator = tf.random.Generator.from_seed(seed)

        def function(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with _drawn_from(generator):
                mixed = layer({"images": x, "labels": y}, training=True)
            return tuple(
                tf.ensure_shape(part, like.shape)
                for part, like in ((mixed["images"], x), (mixed["labels"], y))
            )

        return batches.map(function)

    return mix


@contextlib.contextmanager
def _drawn_from(generator: tf.random.Generator) -> Iterator[None]:
    """Lets layers that are traced draw from `generator`.

    The layers of KerasCV 0.9 draw from ops too whose state is lost with the iterator: every pass
    over a data set would draw the same.
    """

    def new_seed() -> tf.Tensor:
        return generator.make_seeds(1)[:, 0]

    def uniform(
        shape: Any, minval: Any = 0, maxval: Any = None, dtype: Any = tf.float32, **_: Any
    ) -> Any:
        return tf.random.stateless_uniform(shape, new_seed(), minval, maxval, dtype)

    def normal(
        shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = tf.float32, **_: Any
    ) -> Any:
        return tf.random.stateless_normal(shape, new_seed(), mean, stddev, dtype)

    def gamma(shape: Any, alpha: Any, **_: Any) -> Any:
        return tf.random.stateless_gamma(shape, new_seed(), alpha)

    def shuffle(value: Any, **_: Any) -> Any:
        return tf.random.experimental.stateless_shuffle(value, new_seed())

    ours = {"uniform": uniform, "normal": normal, "gamma": gamma, "shuffle": shuffle}
    theirs = {name: getattr(tf.random, name) for name in ours}
    for name, function in ours.items():
        setattr(tf.random, name, function)
    try:
        yield
    finally:
        for name, function in theirs.items():
            setattr(tf.random, name, function)


_BY_NAME = {
    "randaugment": _rand_augment,
    "cutmix": _mixed("CutMix", _CUTMIX_ALPHA),
    "mixup": _mixed("MixUp", _MIXUP_ALPHA),
}

"""Augmentation of training batches by KerasCV: mixing images and labels, and RandAugment.

Every draw is seeded. KerasCV draws from ops and generators that keep a state, therefore batches
are augmented one after the other: with several at a time the draws would depend on the threads.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf import arguments

#: What can be applied, in the order in which it is, as in KerasCV's guide.
NAMES = ("randaugment", "cutmix", "mixup")
# Settings of the papers on ImageNet, KerasCV's defaults: alpha of the mixing, and 9 of 30 for
# RandAugment, its paper's magnitude for ResNet50.
_MIXING = {"cutmix": ("CutMix", 1.0), "mixup": ("MixUp", 0.2)}
_MAGNITUDE = 0.3


def check(names: Sequence[str], batch_size: int) -> None:
    """Refuse unknown names, and mixing in batches of one image."""
    for name in arguments.items("augment", names, what="a list of names"):
        arguments.choice("augment", name, NAMES)
    if mixes(names) and batch_size < 2:
        raise ValueError(
            "Images are mixed with others of their batch: there must be at least two. Received: "
            f"batch_size={batch_size}, augment={', '.join(names)}. Use a larger batch."
        )


def mixes(names: Sequence[str]) -> bool:
    """Whether labels become shares of several classes."""
    return any(name in _MIXING for name in names)


def augmented(batches: tf.data.Dataset, names: Sequence[str], *, seed: int) -> tf.data.Dataset:
    """The batches with their images augmented, other ones at each pass.

    Args:
        batches: float32 images of 0 to 255, (batch, height, width, 1 or 3), and labels, one-hot if
            `mixes(names)`.
        names: of `NAMES`; applied in its order, each at most once.
        seed: of the draws.

    CutMix of KerasCV 0.9 counts a cut as a whole in the label, also where it reaches over the edge
    of the image.

    Sources: Yun et al., CutMix, ICCV 2019; Zhang et al., mixup, ICLR 2018; Cubuk et al.,
    RandAugment, NeurIPS 2020.
    """
    if not names:
        return batches
    import keras_cv  # seconds to import: only for those who need it

    size = batches.element_spec[0].shape[0]
    for place, name in enumerate(NAMES):
        if name not in names:
            continue
        own = seed + place
        generator = tf.random.Generator.from_seed(own)
        if name in _MIXING:
            kind, alpha = _MIXING[name]
            layer = getattr(keras_cv.layers, kind)(alpha, seed=own)
            batches = batches.map(functools.partial(_mixed, layer, generator))
        else:
            # Image by image: in a batch the layer draws for several at a time.
            layer = keras_cv.layers.RandAugment((0, 255), magnitude=_MAGNITUDE, seed=own)
            singles = batches.unbatch().map(functools.partial(_changed, layer, generator))
            batches = singles.batch(size, drop_remainder=True)
    return batches


def _mixed(layer: Any, generator: tf.random.Generator, x: tf.Tensor, y: tf.Tensor) -> Any:
    with _drawn_from(generator):
        mixed = layer({"images": x, "labels": y}, training=True)
    return tf.ensure_shape(mixed["images"], x.shape), tf.ensure_shape(mixed["labels"], y.shape)


def _changed(layer: Any, generator: tf.random.Generator, x: tf.Tensor, y: tf.Tensor) -> Any:
    channels = x.shape[-1]
    with _drawn_from(generator):
        image = layer(tf.image.grayscale_to_rgb(x) if channels == 1 else x, training=True)
    # colour operations leave the range by rounding errors
    return tf.ensure_shape(tf.clip_by_value(image[..., :channels], 0, 255), x.shape), y


@contextlib.contextmanager
def _drawn_from(generator: tf.random.Generator) -> Iterator[None]:
    """Lets layers that are traced draw from `generator`.

    The layers of KerasCV 0.9 draw from ops too whose state is lost with the iterator: every pass
    over a data set would draw the same.
    """

    def new_seed() -> tf.Tensor:
        return generator.make_seeds(1)[:, 0]

    ours: dict[str, Any] = {
        "uniform": lambda shape, minval=0, maxval=None, dtype=tf.float32, **_: (
            tf.random.stateless_uniform(shape, new_seed(), minval, maxval, dtype)
        ),
        "normal": lambda shape, mean=0.0, stddev=1.0, dtype=tf.float32, **_: (
            tf.random.stateless_normal(shape, new_seed(), mean, stddev, dtype)
        ),
        "gamma": lambda shape, alpha, **_: tf.random.stateless_gamma(shape, new_seed(), alpha),
        "shuffle": lambda value, **_: tf.random.experimental.stateless_shuffle(value, new_seed()),
    }
    theirs = {name: getattr(tf.random, name) for name in ours}
    try:
        for name, function in ours.items():
            setattr(tf.random, name, function)
        yield
    finally:
        for name, function in theirs.items():
            setattr(tf.random, name, function)

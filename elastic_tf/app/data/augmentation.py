"""Random changes of a training image that leave its class as it is, by name."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from elastic_tf import arguments

_TURN = 0.3  # radians at most, 17 degrees
_LIGHT = 0.2  # of the range of pixels; and of the distance from the mean


def augmentation(*names: str) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """A function for `Samples(augment=)`: (image, seed) -> image, changed by these, in this order.

    Images are (height, width, channels) of 0 to 255 and keep their type; seeds have shape (2,).
    "flip": mirrored left to right in half of the cases; "crop": a window of eight ninths, made as
    large as the image; "rotate": by up to 17 degrees, mirrored at its edges; "brightness" and
    "contrast": up to a fifth more or less. A ValueError says which names there are.
    """
    for name in names:
        arguments.choice("augment", name, tuple(NAMES))

    def changed(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        x = tf.cast(image, tf.float32) if names else image
        for place, name in enumerate(names):
            x = NAMES[name](x, tf.random.experimental.stateless_fold_in(seed, place))
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


NAMES = {
    "flip": tf.image.stateless_random_flip_left_right,
    "crop": _cropped,
    "rotate": _rotated,
    "brightness": _clipped(tf.image.stateless_random_brightness, 255 * _LIGHT),
    "contrast": _clipped(tf.image.stateless_random_contrast, 1 - _LIGHT, 1 + _LIGHT),
}

"""Handwritten digits, as they are and as another domain would show them."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.extras import extra

Labelled = tuple[np.ndarray, np.ndarray]

_TEST_SHARE = 0.3
_MOST_SIZE = 1024  # pixels; the images are enlarged all at once


@dataclasses.dataclass(frozen=True)
class Shift:
    """How another domain looks: applied in the order of the attributes."""

    rotation: float = 0.0  #: degrees, counter-clockwise
    contrast: float = 1.0  #: distance of every pixel from mid-grey relative to the original
    inverted: bool = False  #: dark on bright
    noise: float = 0.0  #: standard deviation of Gaussian noise in grey levels of 255


def digits(
    *, image_size: int = 32, shift: Shift | None = None, seed: int = 0
) -> tuple[Labelled, Labelled]:
    """The 1797 handwritten digits that come with scikit-learn, as they are or in another domain.

    `seed` is that of the noise and of the split, the same in every domain. `image_size` is what the
    8x8 originals are enlarged to.

    Returns:
        (x_train, y_train), (x_test, y_test): uint8 (count, image_size, image_size, 1) of 0 to 255,
        bright on dark; int64 (count,). Three in ten of each class are in the test part.

    Source: Alpaydin & Kaynak, Optical Recognition of Handwritten Digits, UCI 1998.
    """
    with extra("data"):
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

    image_size = arguments.count("image_size", image_size, least=8, most=_MOST_SIZE)
    x, y = load_digits(return_X_y=True)
    # Originals are 0 to 16.
    x = tf.image.resize(x.reshape(-1, 8, 8, 1) * (255 / 16), (image_size, image_size)).numpy()
    x = _shifted(x, shift or Shift(), np.random.default_rng(seed))
    x = np.clip(np.rint(x), 0, 255).astype(np.uint8)
    x_train, x_test, y_train, y_test = train_test_split(
        x, y.astype(np.int64), test_size=_TEST_SHARE, stratify=y, random_state=seed
    )
    return (x_train, y_train), (x_test, y_test)


def _shifted(x: np.ndarray, shift: Shift, generator: np.random.Generator) -> np.ndarray:
    """The images (count, size, size, 1) in another domain, not yet clipped to 0..255."""
    if shift.rotation:
        from scipy import ndimage

        options = {"axes": (1, 2), "reshape": False, "order": 1, "mode": "grid-constant"}
        x = ndimage.rotate(x, shift.rotation, **options)
    x = 127.5 + (x - 127.5) * shift.contrast
    if shift.inverted:
        x = 255 - x
    return x + shift.noise * generator.standard_normal(x.shape)

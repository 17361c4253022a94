"""Images that are arrays: in memory, in a file, or handwritten digits, in several domains."""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.app.data.pipelines import Batching, ImageData, from_rows
from elastic_tf.arguments import extra
from elastic_tf.files import read_arrays

Labelled = tuple[np.ndarray, np.ndarray]

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_MOST_LABEL = 10**6
_TEST_SHARE = 0.3  # of the digits
_MOST_SIZE = 1024  # pixels of a digit; they are enlarged all at once


def from_arrays(train: Labelled, test: Labelled, **options: Any) -> ImageData:
    """Batches of images (count, height, width, channels) and labels (count,), the class names.

    `options` are those of `Batching`: batch_size, seed, augment, validation_share. A ValueError
    says what is out of range, what does not fit together, or that there is no full batch.
    """
    batching = Batching(**options)
    x, y = _checked("train", *train)
    x_test, y_test = _checked("test", *test)
    if x.shape[1:] != x_test.shape[1:]:
        raise ValueError(
            "The training and the test part must have images of one shape. Received: "
            f"{x.shape[1:]} and {x_test.shape[1:]}."
        )
    count = 1 + max(y.max(), y_test.max())
    if len(empty := np.setdiff1d(np.arange(count), y)):
        warnings.warn(
            f"Each class, 0 to {count - 1}, should have training images. Received: none of "
            f"{arguments.brief(empty.tolist())}. Look at the labels, or number those that there "
            "are from 0, with np.unique(y, return_inverse=True).",
            stacklevel=2,
        )
    names = [str(label) for label in range(count)]
    return from_rows((x, y), (x_test, y_test), batching=batching, class_names=names)


def arrays(path: str | os.PathLike[str]) -> tuple[Labelled, Labelled]:
    """(x_train, y_train), (x_test, y_test) of an .npz file with arrays of these names.

    Images are (count, height, width, channels) as they are in the file, a channel added where there
    is none; labels int64 (count,). A ValueError says which arrays are missing or do not fit.
    """
    path = arguments.file("path", path, "an .npz file")
    try:
        found = read_arrays(path, _ARRAYS)
    except (OSError, ValueError) as error:
        raise ValueError(f"`path` must be an .npz file. Received: '{path}' {error}.") from error
    if missing := [name for name in _ARRAYS if name not in found]:
        raise ValueError(
            f"The file must hold {', '.join(_ARRAYS)}. Received: '{path}' without "
            f"{', '.join(missing)}; it holds {', '.join(found) or 'nothing'}."
        )
    for name, part in found.items():
        if name.startswith("x") and part.ndim == 3:
            found[name] = part[..., np.newaxis]
        elif part.shape[1:] == (1,):  # labels in one column
            found[name] = part.reshape(-1)
    train, test = (
        _checked(f"{part} of '{path}'", found[f"x_{part}"], found[f"y_{part}"])
        for part in ("train", "test")
    )
    return train, test


def _checked(part: str, x: Any, y: Any) -> Labelled:
    """Images and their labels as int64, if they are such."""
    x, y = arguments.array(part, x), arguments.array(part, y)
    if x.ndim != 4 or not x.size or x.dtype.kind not in "uif" or not np.isfinite(x).all():
        raise ValueError(
            "Images must be finite numbers of shape (count, height, width, channels). Received: "
            f"{x.dtype} of shape {x.shape} in {part}: {arguments.brief(x.tolist())}."
        )
    is_whole = y.dtype.kind in "ui" and y.shape == (len(x),)
    if not is_whole or int(y.min()) < 0 or y.max() > _MOST_LABEL:
        raise ValueError(
            f"The labels of {len(x)} images must be as many integers from 0 to {_MOST_LABEL}. "
            f"Received: {y.dtype} of shape {y.shape} in {part}: {arguments.brief(y.tolist())}."
        )
    return x, y.astype(np.int64)


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

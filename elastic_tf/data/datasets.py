"""Images to train on: class folders, arrays, and handwritten digits that need no download.

Pixels are 0 to 255 everywhere; the models of `zoo` bring their own preprocessing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.data import images, pipelines
from elastic_tf.data.handwriting import Labelled, Shift, digits
from elastic_tf.data.pipelines import ImageData, Load, Source, batched
from elastic_tf.data.splitting import split_off
from elastic_tf.files.array_archive import DAMAGE

__all__ = ["ImageData", "Labelled", "Shift", "arrays", "digits", "from_arrays", "image_folder"]

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
# Decoded images stay in memory up to this share of it.
_CACHED_SHARE = 0.25
_MOST_SIZE = 8192  # pixels
_MOST_LABEL = 10**6


def image_folder(
    path: str | os.PathLike[str],
    *,
    image_size: int,
    batch_size: int,
    seed: int = 0,
    flip: bool = False,
    augment: Sequence[str] = (),
    validation_share: float = 0.0,
    cache: bool | None = None,
    on_bad_image: str = "raise",
) -> ImageData:
    """Images from PATH/train/CLASS/ and PATH/test/CLASS/ (JPEG, PNG, BMP, GIF), always RGB.

    Args:
        path: the folder.
        image_size: height and width to which images are squeezed, in pixels.
        batch_size: images in a batch.
        seed: of the order, the flips, the other augmentations and the split.
        flip: mirror each training image left to right in half of the passes.
        augment: what else happens to training images, of `augmentation.NAMES`.
        validation_share: share of the training images of each class that becomes the validation
            part.
        cache: keep the decoded images in memory; None keeps them if they take at most a quarter
            of it. Without it every pass decodes the files again.
        on_bad_image: "raise" on a file that is no image, or "skip" and train on the rest.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: a setting out of range, classes that are missing, empty, or differ between
            train and test, a file that is no image, or fewer training images than a batch.
    """
    path = arguments.path("path", path)
    # What is wrong with an argument is said before thousands of images are decoded.
    arguments.count("image_size", image_size, most=_MOST_SIZE)
    pipelines.check(batch_size, seed, flip, augment, validation_share)
    if cache is not None:
        arguments.flag("cache", cache)
    arguments.choice("on_bad_image", on_bad_image, ("raise", "skip"))
    train, test, class_names = images.list_parts(path)
    if cache is None:
        size = (len(train.paths) + len(test.paths)) * image_size * image_size * 3
        cache = size <= _CACHED_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    parts, pixels, skipped = images.load_parts(
        (train, test), class_names, image_size, keep=cache, skip_bad=on_bad_image == "skip"
    )
    train_load, test_load = (
        _from_files(part, image_size) if kept is None else _from_arrays(kept, part.labels)
        for part, kept in zip(parts, pixels)
    )
    rows, held_out = split_off(parts[0].labels, validation_share, seed)
    return batched(
        _rows(train_load, rows),
        _rows(test_load, np.arange(len(parts[1].labels))),
        validation=_rows(train_load, held_out) if len(held_out) else None,
        class_names=class_names,
        image_shape=(image_size, image_size, 3),
        batch_size=batch_size,
        seed=seed,
        flip=flip,
        augment=augment,
        skipped=skipped,
    )


def from_arrays(
    train: Labelled,
    test: Labelled,
    *,
    batch_size: int,
    class_names: Sequence[str] | None = None,
    seed: int = 0,
    flip: bool = False,
    augment: Sequence[str] = (),
    validation_share: float = 0.0,
) -> ImageData:
    """Batches of arrays as `arrays` and `digits` return them.

    Args:
        train: images (count, height, width, channels) and labels (count,).
        test: likewise.
        batch_size: images in a batch.
        class_names: names by label; the labels themselves if None.
        seed: of the order, the flips, the other augmentations and the split.
        flip: mirror each training image left to right in half of the passes.
        augment: what else happens to training images, of `augmentation.NAMES`.
        validation_share: share of the training images of each class that becomes the validation
            part.

    Raises:
        ValueError: a setting out of range, or fewer training images than a batch.
    """
    pipelines.check(batch_size, seed, flip, augment, validation_share)
    train, test = _pair("train", train), _pair("test", test)
    _check_shapes(train, test)
    if class_names is None:
        highest = int(max(train[1].max(), test[1].max()))
        class_names = [str(label) for label in range(highest + 1)]
    names = arguments.items("class_names", class_names, what="a list of names")
    if len(names) <= max(train[1].max(), test[1].max()):
        raise ValueError(
            "`class_names` must be a list with a name for each label. Received: "
            f"{brief(class_names)} for labels up to {max(train[1].max(), test[1].max())}."
        )
    rows, held_out = split_off(train[1], validation_share, seed)
    train_load = _from_arrays(*train)
    return batched(
        _rows(train_load, rows),
        _rows(_from_arrays(*test), np.arange(len(test[1]))),
        validation=_rows(train_load, held_out) if len(held_out) else None,
        class_names=names,
        image_shape=tuple(train[0].shape[1:]),
        batch_size=batch_size,
        seed=seed,
        flip=flip,
        augment=augment,
    )


def arrays(path: str | os.PathLike[str]) -> tuple[Labelled, Labelled]:
    """Images and labels of an .npz file with x_train, y_train, x_test, y_test.

    Returns:
        (x_train, y_train), (x_test, y_test): images (count, height, width, channels) as they are
        in the file, a channel added where there is none; labels int64 (count,).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no such arrays in it, or they do not fit together.
    """
    path = arguments.path("path", path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"`path` must be an .npz file. Received: '{path}', not a file.")
    try:
        # Opened here, because NumPy leaves a file open that turns out to be none of its own.
        with open(path, "rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array without a name")
            found = {name: file[name] for name in _ARRAYS if name in file}
            names = list(file)
    # NumPy makes room for what a header claims before it looks for the numbers.
    except (OSError, MemoryError, *DAMAGE) as error:
        why = str(error) or type(error).__name__
        raise ValueError(f"`path` must be an .npz file. Received: '{path}': {why}.") from error
    missing = [name for name in _ARRAYS if name not in found]
    if missing:
        raise ValueError(
            f"The file must hold {', '.join(_ARRAYS)}. Received: '{path}' without "
            f"{', '.join(missing)}; it holds {', '.join(names) or 'nothing'}."
        )
    train, test = (_stored(path, found, part) for part in ("train", "test"))
    _check_shapes(train, test, f" in '{path}'")
    return train, test


def _pair(name: str, pair: Any) -> Labelled:
    """The images and labels of an argument."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"`{name}` must be (images, labels). Received: {brief(pair)}.")
    x, y = (arguments.array(name, part) for part in pair)
    return _labelled((f"{name}[0]", f"{name}[1]"), x, y)


def _stored(path: str, found: dict[str, np.ndarray], part: str) -> Labelled:
    """The images and labels of a file, the images with a channel, the labels in one row."""
    names = f"x_{part}", f"y_{part}"
    x, y = (found[name] for name in names)
    if x.ndim == 3:
        x = x[..., np.newaxis]
    if x.shape[:1] == (y.size,):
        y = y.reshape(-1)
    return _labelled(names, x, y, f" in '{path}'")


def _labelled(names: tuple[str, str], x: np.ndarray, y: np.ndarray, where: str = "") -> Labelled:
    """Images and int64 labels, if they fit together; `names` and `where` are for messages."""
    if x.ndim != 4 or not x.size or x.dtype.kind not in "uif":
        raise ValueError(
            f"`{names[0]}` must be images, numbers of shape (count, height, width, channels). "
            f"Received: {x.dtype} of shape {x.shape}{where}."
        )
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise ValueError(f"`{names[0]}` must be finite. Received: NaN or infinity{where}.")
    if (
        y.dtype.kind not in "ui"
        or y.shape != (len(x),)
        or int(y.min()) < 0
        or y.max() > _MOST_LABEL
    ):
        raise ValueError(
            f"`{names[1]}` must be {len(x)} integers from 0 to {_MOST_LABEL}. Received: {y.dtype} "
            f"of shape {y.shape}{where}: {brief(y.tolist())}."
        )
    return x, y.astype(np.int64)


def _check_shapes(train: Labelled, test: Labelled, where: str = "") -> None:
    """Refuse parts with images of different shapes."""
    if train[0].shape[1:] != test[0].shape[1:]:
        raise ValueError(
            f"`train` and `test` must have images of one shape. Received: {train[0].shape[1:]} and "
            f"{test[0].shape[1:]}{where}."
        )


def _from_arrays(x: np.ndarray, y: np.ndarray) -> Load:
    """Images that are in memory; all pipelines over them share one copy."""
    with tf.device("cpu"):
        pixels, labels = tf.constant(x), tf.constant(y, tf.int64)
    return lambda row: (pixels[row], labels[row])


def _from_files(part: images.Part, image_size: int) -> Load:
    """Images that are decoded whenever they are needed."""
    with tf.device("cpu"):
        # As bytes: names of files need not be text.
        paths = tf.constant([os.fsencode(path) for path in part.paths])
        labels = tf.constant(part.labels)
    return lambda row: (images.decode(tf.io.read_file(paths[row]), image_size), labels[row])


def _rows(load: Load, rows: np.ndarray) -> Source:
    """Some of the images: their numbers are shuffled, not they."""
    numbers = tf.data.Dataset.from_tensor_slices(rows.astype(np.int64))
    return Source(numbers, load, len(rows), shuffled=len(rows))

"""Folders of image files, a folder for each class."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.app import class_folders
from elastic_tf.app.data.pipelines import MOST_SIZE, Batching, ImageData, fits_memory, from_rows
from elastic_tf.files import as_utf8, read_bytes
from elastic_tf.timing import usable_cores

_MOST_BYTES = 2**28  # of a file


def image_folder(
    path: str | os.PathLike[str],
    *,
    image_size: int,
    cache: bool | None = None,
    on_bad_image: str = "raise",
    **options: Any,
) -> ImageData:
    """Images from PATH/train/CLASS/ and PATH/test/CLASS/ (JPEG, PNG, BMP, GIF), always RGB.

    Where there is PATH/CLASS/ alone, a fifth of each class, drawn by the seed, is for tests. Every
    file is decoded once before anything is trained, lest an error end a training of hours.

    Args:
        path: the folder. Hidden files and what lies beside the class folders are not looked at.
        image_size: height and width to which images are squeezed, in pixels.
        cache: keep the decoded images in memory; None keeps them if they take at most a quarter
            of it. Without it every pass decodes the files again.
        on_bad_image: "raise" on a file that is no image, or "skip" and train on the rest.
        **options: of `Batching`: batch_size, seed, augment, validation_share.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: a setting out of range, classes that are missing, empty, or differ between
            train and test, a file that is no image, or fewer training images than a batch.
    """
    root = Path(arguments.path("path", path))
    # What is wrong with an argument is said before thousands of images are decoded.
    batching = Batching(**options)
    arguments.count("image_size", image_size, most=MOST_SIZE)
    arguments.choice("on_bad_image", on_bad_image, ("raise", "skip"))
    names = class_folders.class_names(root)
    parts = class_folders.parted(root, names, batching.seed)
    if cache is None:
        cache = fits_memory(sum(len(paths) for paths, _ in parts), (image_size, image_size, 3))

    found, skipped = [], []
    for part, (paths, labels) in zip(class_folders.PARTS, parts):
        pixels, good = _decoded(paths, image_size, keep=cache, skip_bad=on_bad_image == "skip")
        if empty := [name for label, name in enumerate(names) if label not in labels[good]]:
            raise ValueError(
                f"Every class must have an image to {part}. Received: class {empty[0]!r} of "
                f"'{root}' without one. Add images, or remove the class."
            )
        skipped += [path for path, is_good in zip(paths, good) if not is_good]
        # as bytes: names of files need not be text
        files = [os.fsencode(path) for path, is_good in zip(paths, good) if is_good]
        found.append((pixels if cache else files, labels[good]))
    options = {} if cache else {"decode": lambda x: decode(tf.io.read_file(x), image_size)}
    classes = [as_utf8(name) for name in names]
    return from_rows(*found, batching=batching, class_names=classes, skipped=skipped, **options)


def decode(contents: tf.Tensor, size: int) -> tf.Tensor:
    """The image in `contents` (JPEG, PNG, BMP, first frame of a GIF), as RGB uint8 (size, size, 3).

    The whole image is squeezed into the square, with smoothing where it becomes smaller. Of 16 bits
    per channel the upper 8 are kept, CMYK becomes RGB, what is transparent keeps its colour, and an
    orientation that a camera has written beside the pixels is not applied.
    """
    image = tf.io.decode_image(contents, channels=3, expand_animations=False)
    image.set_shape((None, None, 3))
    image = tf.image.resize(image, (size, size), antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)


def read(path: str, size: int) -> np.ndarray:
    """The image in a file, as `decode` makes it; a ValueError says why there is none."""
    try:
        return decode(read_bytes(path, _MOST_BYTES), size).numpy()
    except (OSError, ValueError, tf.errors.OpError) as error:
        # TensorFlow puts the place in its graph before and after what it has to say.
        said = getattr(error, "strerror", "") or getattr(error, "message", "") or str(error)
        why = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", said).strip(" .")
        raise ValueError(
            f"An image file must be a JPEG, PNG, BMP or GIF. Received: {path!r}: {why}"
        ) from error


def _decoded(
    paths: Sequence[str], size: int, *, keep: bool, skip_bad: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of all images, uint8 (count, size, size, 3), if kept; and which files are such."""
    pixels = np.empty((len(paths) if keep else 0, size, size, 3), np.uint8)

    def is_image(index: int) -> bool:
        try:
            image = read(paths[index], size)
        except ValueError as error:
            if skip_bad:
                return False
            raise ValueError(
                f"{error}. Remove it, or train on the rest with on_bad_image='skip' "
                "(--skip-bad-images)."
            ) from error
        if keep:
            pixels[index] = image
        return True

    # TensorFlow decodes without Python's lock: threads use all cores.
    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        good = np.fromiter(pool.map(is_image, range(len(paths))), bool)
    return (pixels if good.all() or not keep else pixels[good]), good

"""Folders of image files, a folder for each class."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image, UnidentifiedImageError

from elastic_tf import arguments
from elastic_tf.data.pipelines import MOST_SIZE, Batching, ImageData, batched, rows_of, split_off
from elastic_tf.files.atomic import as_utf8
from elastic_tf.files.strict_json import read_bytes
from elastic_tf.timing.runtime import usable_cores

_FORMATS = ("JPEG", "PNG", "BMP", "GIF")
_MOST_PIXELS = 2**26  # of all frames of a file together; they take 1 GB while they are resized
_MOST_BYTES = 4 * _MOST_PIXELS + 2**20  # of a file; a bitmap has four bytes for a pixel
# What Windows and macOS put into folders by themselves, beside hidden files.
_SYSTEM_FILES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"})
# Decoded images stay in memory up to this share of it.
_CACHED_SHARE = 0.25


def image_folder(
    path: str | os.PathLike[str],
    *,
    image_size: int,
    cache: bool | None = None,
    on_bad_image: str = "raise",
    **options: Any,
) -> ImageData:
    """Images from PATH/train/CLASS/ and PATH/test/CLASS/ (JPEG, PNG, BMP, GIF), always RGB.

    Every file is decoded once before anything is trained: an error in the middle of a training that
    has run for hours costs more than one pass over the files.

    Args:
        path: the folder. Hidden files and what lies beside the class folders are not looked at.
        image_size: height and width to which images are squeezed, in pixels.
        cache: keep the decoded images in memory; None keeps them if they take at most a quarter
            of it. Without it every pass decodes the files again.
        on_bad_image: "raise" on a file that is no image, or "skip" and train on the rest.
        **options: of `Batching`: batch_size, seed, flip, augment, validation_share.

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
    names = _class_names(root)
    parts = {part: _listed(root / part, names) for part in ("train", "test")}
    if cache is None:
        size = sum(len(paths) for paths, _ in parts.values()) * image_size * image_size * 3
        cache = size <= _CACHED_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def read(file: tf.Tensor) -> tf.Tensor:
        return decode(tf.io.read_file(file), image_size)

    sources, rows, skipped = [], [], []
    for part, (paths, labels) in parts.items():
        pixels, good = _decoded(paths, image_size, keep=cache, skip_bad=on_bad_image == "skip")
        for label, name in enumerate(names):
            if label not in labels[good]:
                raise ValueError(
                    f"Every class must have an image. Received: class {as_utf8(name)!r} without "
                    f"one in {_shown(root / part / name)}. Add images, or remove the class."
                )
        skipped += [path for path, is_good in zip(paths, good) if not is_good]
        rows.append(np.flatnonzero(good))
        # As bytes: names of files need not be text.
        files = [os.fsencode(path) for path in paths]
        sources.append(rows_of(pixels, labels) if cache else rows_of(files, labels, read))
    left, held_out = split_off(parts["train"][1][rows[0]], batching)
    return batched(
        sources[0](rows[0][left]),
        sources[1](rows[1]),
        sources[0](rows[0][held_out]),
        batching=batching,
        class_names=[as_utf8(name) for name in names],
        image_shape=(image_size, image_size, 3),
        skipped=tuple(skipped),
    )


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


def _class_names(root: Path) -> list[str]:
    """Names of the class folders, which `train` and `test` share."""
    if not root.is_dir():
        raise FileNotFoundError(
            f"The data must be a folder with train/CLASS/ and test/CLASS/. Received: '{root}', "
            f"which is {'a file' if root.exists() else 'not there'}."
        )
    train, test = (_folders(root / part) for part in ("train", "test"))
    if not train or not test:
        raise ValueError(
            f"'{root}' must hold the folders 'train' and 'test', each with one folder for each "
            f"class. Received: no class folder in '{'test' if train else 'train'}'; '{root}' holds "
            f"{_some(_folders(root)) or 'no folder'}."
        )
    if train != test:
        only_train, only_test = sorted({*train} - {*test}), sorted({*test} - {*train})
        part, other = ("train", "test") if only_train else ("test", "train")
        raise ValueError(
            f"'train' and 'test' of '{root}' must have the same classes. Received: "
            f"{_some(only_train or only_test)} in '{part}' and not in '{other}'."
        )
    if len(train) < 2:
        raise ValueError(
            f"There must be at least 2 classes. Received: one, {train[0]!r}, in '{root}'."
        )
    return train


def _folders(path: Path) -> list[str]:
    """Names of the folders in `path`, sorted."""
    if not path.is_dir():
        return []
    return sorted(p.name for p in path.iterdir() if p.is_dir() and not _is_hidden(p.name))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _SYSTEM_FILES


def _listed(folder: Path, names: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Paths of all files, class by class and sorted in each, and their labels, int64 (count,)."""
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        files = sorted(file for file in (folder / name).iterdir() if not _is_hidden(file.name))
        paths += map(str, files)
        labels += [label] * len(files)
    return paths, np.array(labels, np.int64)


def _decoded(
    paths: Sequence[str], size: int, *, keep: bool, skip_bad: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of all files, uint8 (count, size, size, 3), empty unless `keep`; which are images.

    The latter are bool (count,).
    """
    pixels = np.empty((len(paths) if keep else 0, size, size, 3), np.uint8)

    def is_image(index: int) -> bool:
        why = ""
        try:
            image = decode(_contents(paths[index]), size).numpy()
            if keep:
                pixels[index] = image
        except OSError as error:
            why = error.strerror or str(error)
        except (tf.errors.OpError, Image.DecompressionBombError, EOFError, ValueError) as error:
            # TensorFlow puts the place in its graph before and after what it has to say.
            why = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", str(getattr(error, "message", error)))
        if why and not skip_bad:
            raise ValueError(
                "Every file in a class folder must be a JPEG, PNG, BMP or GIF image. Received: "
                f"{_shown(paths[index])}: {why.strip(' .')}. Remove it, or train on the rest "
                "with on_bad_image='skip' (--skip-bad-images)."
            )
        return not why

    # TensorFlow decodes without Python's lock: threads use all cores.
    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        good = np.fromiter(pool.map(is_image, range(len(paths))), bool)
    return pixels, good


def _contents(path: str) -> bytes:
    """All of an image file that is worth decoding: some kilobytes can stand for gigabytes."""
    try:
        data = read_bytes(path, _MOST_BYTES)
    except ValueError as error:
        raise ValueError(f"it {error}") from error
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError as error:
        # newer TensorFlow decodes more
        kind = "empty" if not data else "of another kind, or its beginning is broken; convert it"
        raise ValueError(f"it is {kind}") from error
    with image:
        is_gif = image.format == "GIF"
        # all frames of a GIF are unpacked, one of any other file
        count = image.width * image.height * (getattr(image, "n_frames", 1) if is_gif else 1)
    if count > _MOST_PIXELS:
        raise ValueError(f"it stands for {count} pixels, more than {_MOST_PIXELS}; make it smaller")
    return data


def _shown(path: str | Path) -> str:
    """A path in quotes, on one line, with characters that can be printed."""
    return repr(as_utf8(str(path)))


def _some(names: Sequence[str]) -> str:
    """The first names, for a message."""
    return ", ".join(repr(as_utf8(name)) for name in names[:3]) + ", ..." * (len(names) > 3)

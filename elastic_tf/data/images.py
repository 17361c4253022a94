"""Folders of image files: which files there are, and what is in them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf.data import image_sizes
from elastic_tf.files.atomic import as_utf8
from elastic_tf.timing.runtime import usable_cores

_SYSTEM_FILES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"})


class Part(NamedTuple):
    """The files of `train` or `test`, class by class, each class sorted by file name."""

    paths: list[str]
    labels: np.ndarray  # int64, (len(paths),)


def list_parts(path: str | os.PathLike[str]) -> tuple[Part, Part, tuple[str, ...]]:
    """The files of PATH/train/CLASS and PATH/test/CLASS and the names of the classes.

    Hidden files, those that Windows puts into folders, and what lies beside the class folders are
    not looked at. Names of files may be of any bytes.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: `train` or `test` is missing or has no classes, their classes differ, or the
            name of one is no text.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(
            f"The data must be a folder with train/CLASS/ and test/CLASS/. Received: '{root}', "
            f"which is {'a file' if root.exists() else 'not there'}."
        )
    names = {part: _folders(root / part) for part in ("train", "test")}
    for part, found in names.items():
        if not found:
            raise ValueError(
                f"'{root}' must hold the folders 'train' and 'test', each with one folder for "
                f"each class. Received: no class folder in '{root / part}'; '{root}' holds "
                f"{_some(_folders(root)) or 'no folder'}."
            )
    for part, found in names.items():
        for name in found:
            if as_utf8(name) != name:
                raise ValueError(
                    "The name of a class must be UTF-8. Received: a folder named "
                    f"{os.fsencode(name)!r} in '{root / part}'. Rename it."
                )
    if names["train"] != names["test"]:
        only_train = sorted(set(names["train"]) - set(names["test"]))
        only_test = sorted(set(names["test"]) - set(names["train"]))
        part, other = ("train", "test") if only_train else ("test", "train")
        raise ValueError(
            f"'train' and 'test' of '{root}' must have the same classes. Received: "
            f"{_some(only_train or only_test)} in '{part}' and not in '{other}'."
        )
    if len(names["train"]) < 2:
        raise ValueError(
            f"There must be at least 2 classes. Received: one, {names['train'][0]!r}, in '{root}'."
        )
    train, test = (_list_files(root / part, names["train"]) for part in ("train", "test"))
    return train, test, tuple(names["train"])


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


def load_parts(
    parts: Sequence[Part], class_names: Sequence[str], size: int, *, keep: bool, skip_bad: bool
) -> tuple[list[Part], list[np.ndarray | None], tuple[str, ...]]:
    """Decode every file once, and leave out those that are no images where that is asked for.

    Every file is decoded to its end: a header may be right where the rest is cut off, and an error
    in the middle of a training that has run for hours costs more than one pass over the files.

    Args:
        parts: files as `list_parts` gives them.
        class_names: names of the classes.
        size: height and width in pixels.
        keep: whether to return the pixels too; they are the same as in the pipelines.
        skip_bad: leave files that are no images out instead of raising.

    Returns:
        The parts without the files left out; for each the pixels, uint8 (count, size, size, 3), or
        None; the paths left out.

    Raises:
        ValueError: a file that is no image; a class without an image.
    """
    good_parts: list[Part] = []
    pixels: list[np.ndarray | None] = []
    skipped: list[str] = []
    for part in parts:
        images = np.empty((len(part.paths), size, size, 3), np.uint8) if keep else None
        good: list[int] = []
        # TensorFlow decodes without Python's lock: threads use all cores.
        with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
            try:
                decoded = pool.map(lambda path: _decode_file(path, size), part.paths)
                for index, (path, result) in enumerate(zip(part.paths, decoded)):
                    if isinstance(result, np.ndarray):
                        if images is not None:
                            images[len(good)] = result
                        good.append(index)
                    elif skip_bad:
                        skipped.append(path)
                    else:
                        raise ValueError(
                            "Every file in a class folder must be a JPEG, PNG, BMP or GIF image. "
                            f"Received: {_shown(path)}: {result}. Remove it, or train on the rest "
                            "with on_bad_image='skip' (--skip-bad-images)."
                        )
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        left = Part([part.paths[index] for index in good], part.labels[good])
        _check_classes(left, part, class_names)
        good_parts.append(left)
        pixels.append(None if images is None else images[: len(good)])
    return good_parts, pixels, tuple(skipped)


def _decode_file(path: str, size: int) -> np.ndarray | str:
    """The pixels of a file, or why there are none."""
    try:
        return decode(image_sizes.contents(path), size).numpy()
    except OSError as error:
        return error.strerror or type(error).__name__
    except (tf.errors.OpError, ValueError) as error:
        # TensorFlow puts the place in its graph before and after what it has to say.
        text = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", str(getattr(error, "message", error)))
        return text.strip(" .\n") or type(error).__name__


def _check_classes(left: Part, before: Part, class_names: Sequence[str]) -> None:
    """Refuse a class that has lost all of its images."""
    for label, name in enumerate(class_names):
        if label not in left.labels:
            folder = os.path.dirname(before.paths[int(np.argmax(before.labels == label))])
            raise ValueError(
                f"Every class must have an image. Received: class {name!r} of which no file in "
                f"{_shown(folder)} can be decoded."
            )


def _list_files(folder: Path, class_names: Sequence[str]) -> Part:
    """All files of the classes; a class without any is refused."""
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(class_names):
        found = sorted(str(p) for p in (folder / name).iterdir() if not _is_hidden(p.name))
        if not found:
            raise ValueError(
                f"Every class must have an image. Received: class {name!r} without a file in "
                f"'{folder / name}'. Add images, or remove the class from 'train' and 'test'."
            )
        paths += found
        labels += [label] * len(found)
    return Part(paths, np.array(labels, np.int64))


def _folders(path: Path) -> list[str]:
    """Names of the folders in `path` that are not hidden, sorted."""
    if not path.is_dir():
        return []
    return sorted(p.name for p in path.iterdir() if p.is_dir() and not _is_hidden(p.name))


def _is_hidden(name: str) -> bool:
    """Whether a name is of what systems put into folders by themselves."""
    return name.startswith(".") or name.lower() in _SYSTEM_FILES


def _shown(path: str) -> str:
    """A path in quotes, on one line, with characters that can be printed."""
    return repr(as_utf8(path))


def _some(names: Sequence[str]) -> str:
    """The first names, for a message."""
    return ", ".join(repr(name) for name in names[:3]) + (", ..." if len(names) > 3 else "")

"""Images from files, as elastic_tf's training on a larger machine reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

_MOST_PIXELS = 50_000_000  # of a file: 150 MB while it is read


def read_image(path: str | Path, shape: Sequence[int]) -> np.ndarray:
    """The image in a file, squeezed into `shape`, uint8 (height, width, channels).

    Pillow's bilinear filter is that of `tf.image.resize(antialias=True)`. It rounds between the two
    directions and TensorFlow does not: values differ by 1 of 255 at most where both decode alike.
    Of 16 bits the upper 8 are kept, what is transparent keeps its colour, and an orientation beside
    the pixels is not applied.
    """
    height, width, channels = shape
    try:
        with Image.open(path) as file:
            if file.width * file.height > _MOST_PIXELS:
                raise ValueError(f"{file.width} x {file.height} pixels are more than fit")
            image: Image.Image = file
            if image.mode.startswith("I"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            image = image.convert("L" if channels == 1 else "RGB")
            return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).reshape(
                shape
            )
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"An image must be a file that Pillow reads. Received: '{path}': {error}. Remove it, "
            "or save it again as JPEG or PNG."
        ) from error


def class_folders(
    folder: str | Path, names: Sequence[str] | None
) -> tuple[list[Path], np.ndarray, list[str]]:
    """Files of a folder of class folders, their labels, and the names of the classes.

    Args:
        folder: hidden files and what lies beside the class folders are not looked at.
        names: of the classes in their order, where they are known; else sorted.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(
            f"The images must be in a folder. Received: '{root}', which is none."
        )
    found = sorted(one.name for one in root.iterdir() if one.is_dir() and one.name[0] != ".")
    names = list(names or found)
    if len(found) < 2 or not set(found) <= set(names):
        known = f", of {', '.join(names)}" if found != names else ""
        raise ValueError(
            f"The images must lie in a folder for each class, two at least{known}. Received: "
            f"'{root}' with {', '.join(found) or 'no folder'}. Move the images into such folders."
        )
    files = [
        [one for one in sorted((root / name).glob("*")) if one.is_file() and one.name[0] != "."]
        for name in names
    ]
    if empty := [name for name, inside in zip(names, files) if name in found and not inside]:
        raise ValueError(
            f"Every class must have an image. Received: none in '{root / empty[0]}'. Add images, "
            "or remove the folder."
        )
    labels = np.repeat(np.arange(len(names)), [len(inside) for inside in files])
    return [one for inside in files for one in inside], labels, names

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
    try:
        with Image.open(path) as file:
            if file.width * file.height > _MOST_PIXELS:
                raise ValueError(f"{file.width} x {file.height} pixels are more than fit")
            image: Image.Image = file
            if image.mode.startswith("I"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            image = image.convert("L" if shape[2] == 1 else "RGB")
            image = image.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
            return np.asarray(image).reshape(shape)
    except MemoryError:
        raise
    except Exception as error:  # of a damaged file Pillow's readers raise what they like
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
    inside = {
        one.name: [path for path in sorted(one.iterdir()) if path.is_file() and path.name[0] != "."]
        for one in sorted(Path(folder).iterdir())
        if one.is_dir() and one.name[0] != "."
    }
    names = list(names or inside)
    if len(inside) < 2 or not all(inside.values()) or not set(inside) <= set(names):
        found = ", ".join(f"{len(files)} of {name}" for name, files in inside.items())
        raise ValueError(
            "The images must lie in a folder for each class, two at least, none of them empty; "
            f"the classes are {', '.join(names) or 'their names'}. Received: '{folder}' with "
            f"images: {found or 'none'}."
        )
    files = [path for name in names for path in inside.get(name, [])]
    return files, np.repeat(np.arange(len(names)), [len(inside.get(n, [])) for n in names]), names

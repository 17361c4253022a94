"""Folders of images out of arrays: the first so many of each class to train on, others for tests.

    python experiments/small_sets.py FILE.npz 12 runs/signs

The file holds x and y, whose images beyond these are for tests, or x_train, y_train, x_test and
y_test, as those behind the street signs and CIFAR-10 of `first_second.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image


def main(file: str, count: str, out: str) -> None:
    """Write OUT/train/CLASS/NUMBER.png and OUT/test/CLASS/NUMBER.png."""
    with np.load(file) as found:
        arrays = dict(found)
    if "x_train" in arrays:
        train, test = ((arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
    else:
        train = test = (arrays["x"], arrays["y"])
    for label in np.unique(train[1]):
        shown, asked = (x[y == label] for x, y in (train, test))
        parts = {"train": shown[: int(count)], "test": asked}
        if train is test:
            parts["test"] = asked[int(count) :]
        for part, images in parts.items():
            folder = Path(out, part, f"{label:02d}")
            folder.mkdir(parents=True)
            for number, image in enumerate(images):
                Image.fromarray(image).save(folder / f"{number:04d}.png")


if __name__ == "__main__":
    main(*sys.argv[1:])

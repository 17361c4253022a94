"""Other pictures of the same things: shifted, lighter or darker, with a part covered."""

from __future__ import annotations

import numpy as np

_SHIFT = 8  # the part of a side that images are moved by at most is 1 / _SHIFT
_COVERED = 4  # the side of the covered square is 1 / _COVERED of the image's
_CONTRAST, _BRIGHTNESS = 0.3, 0.3


def augmented(images: np.ndarray, rng: np.random.Generator, flip: bool = False) -> np.ndarray:
    """Each image once, changed at random; float32.

    Args:
        images: (n, height, width, channels), of any range of values.
        rng: what the changes are drawn by.
        flip: whether images are mirrored too, where a mirrored thing is the same thing.
    """
    n, height, width, _ = images.shape
    down, along = height // _SHIFT, width // _SHIFT
    padded = np.pad(images, ((0, 0), (down, down), (along, along), (0, 0)), "edge")
    found = np.empty(images.shape, np.float32)
    mean = images.mean(axis=(1, 2, 3), keepdims=True)
    for k in range(n):
        top, left = rng.integers(0, 2 * down + 1), rng.integers(0, 2 * along + 1)
        moved = padded[k, top : top + height, left : left + width]
        found[k] = moved[:, ::-1] if flip and rng.random() < 0.5 else moved
    contrast, brightness = (rng.uniform(-1.0, 1.0, (n, 1, 1, 1)) for _ in range(2))
    found = mean + (1.0 + _CONTRAST * contrast) * (found - mean)
    found += _BRIGHTNESS * brightness * images.std(axis=(1, 2, 3), keepdims=True)
    for k in np.flatnonzero(rng.random(n) < 0.5).tolist():
        top, left = rng.integers(0, height), rng.integers(0, width)
        found[k, top : top + height // _COVERED, left : left + width // _COVERED] = mean[k]
    return found.astype(np.float32)

"""A part split off labelled data, with every class in it as often as in the whole."""

from __future__ import annotations

import numpy as np


def split_off(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that stay, and rows of a part with about `share` of each class.

    The rows of each class are drawn at random; the first one of a class always stays.

    Args:
        labels: class of each row, shape (count,).
        share: of the rows, in [0, 1).
        seed: of the draw.

    Returns:
        Row numbers, int64, in ascending order: those that stay, and the part split off.

    Raises:
        ValueError: `share` is so small that the part would be empty.
    """
    rows = np.arange(len(labels), dtype=np.int64)
    if not share:
        return rows, rows[:0]
    # Class after class, each in random order; then every row that fills up one more whole.
    mixed = np.random.default_rng(seed).permutation(rows)
    ordered = mixed[np.argsort(labels[mixed], kind="stable")]
    filled = np.floor(share * np.arange(len(rows) + 1) + 1e-9)
    is_first = np.diff(labels[ordered], prepend=labels[ordered[0]] - 1) != 0
    taken = (np.diff(filled) > 0) & ~is_first
    if not taken.any():
        raise ValueError(
            f"The validation part must hold an image. Received: `validation_share` {share:g} of "
            f"{len(rows)} training images. Use a larger share, or 0 for no such part."
        )
    return np.sort(ordered[~taken]), np.sort(ordered[taken])

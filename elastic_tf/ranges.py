"""Masks as they stand in files: the tensors that are trained, as [first, last] ranges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def to_ranges(mask: np.ndarray) -> list[list[int]]:
    """The ranges in which `mask`, bool of shape (N,), is True; both ends belong to them."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(mask, np.int8), [0]])))
    return [[int(first), int(end) - 1] for first, end in edges.reshape(-1, 2)]


def from_ranges(ranges: Iterable[Sequence[int]], count: int) -> np.ndarray:
    """The mask of `count` tensors that is True in `ranges`."""
    mask = np.zeros(count, bool)
    for first, last in ranges:
        mask[first : last + 1] = True
    return mask

"""Sets of tensors as they stand in files: [first, last] ranges, both ends belong to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief

MOST_TENSORS = 100_000  # a file that claims more is not of a model


def to_ranges(mask: np.ndarray) -> list[list[int]]:
    """The ranges in which `mask`, bool of shape (N,), is True.

    Raises:
        ValueError: `mask` is of another dtype or shape.
    """
    mask = arguments.array("mask", mask)
    if mask.dtype != bool or mask.ndim != 1:
        raise ValueError(
            f"`mask` must be a bool array of shape (N,). Received: {mask.dtype} of shape "
            f"{mask.shape}: {brief(mask)}."
        )
    return indices_to_ranges(np.flatnonzero(mask))


def indices_to_ranges(indices: Sequence[int] | np.ndarray) -> list[list[int]]:
    """The ranges that hold `indices`, of shape (n,) and ascending.

    Raises:
        ValueError: `indices` are something else.
    """
    found = arguments.array("indices", indices)
    fits = found.ndim == 1 and (found.dtype.kind in "iu" or not found.size)
    if not fits or (found[:1] < 0).any() or (found[1:] <= found[:-1]).any():
        raise ValueError(
            "`indices` must be ascending integers of at least 0. Received: "
            f"{found.dtype} of shape {found.shape}: {brief(indices)}."
        )
    runs = np.split(found, np.flatnonzero(np.diff(found) > 1) + 1)
    return [[int(run[0]), int(run[-1])] for run in runs if run.size]


def from_ranges(ranges: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """The mask of `count` tensors that is True in `ranges`.

    Raises:
        ValueError: as `ranges_to_indices`.
    """
    indices = ranges_to_indices(ranges, count)
    mask = np.zeros(count, bool)
    mask[indices] = True
    return mask


def ranges_to_indices(ranges: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """The indices in `ranges`, ascending int64, of `count` tensors.

    Raises:
        ValueError: `ranges` are not ascending [first, last] pairs below `count`, or `count` is not
            that of a model.
    """
    if type(count) is not int or not 0 <= count <= MOST_TENSORS:
        raise ValueError(
            f"`count` must be an integer from 0 to {MOST_TENSORS}. Received: {brief(count)}."
        )
    parts, end = [np.zeros(0, np.int64)], -1
    for pair in arguments.items("ranges", ranges, what="[first, last] pairs"):
        whole = isinstance(pair, (list, tuple)) and len(pair) == 2
        if (
            not whole
            or any(type(k) is not int for k in pair)
            or not end < pair[0] <= pair[1] < count
        ):
            raise ValueError(
                f"`ranges` must be ascending [first, last] pairs below {count}. Received: "
                f"{brief(pair)}."
            )
        end = pair[1]
        parts.append(np.arange(pair[0], end + 1))
    return np.concatenate(parts)

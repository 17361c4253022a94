"""Masks as they stand in files: the tensors that are trained, as [first, last] ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elastic_tf import arguments
from elastic_tf.strict_json import brief

MOST_TENSORS = 100_000  # a file that claims more is not of a model


def to_ranges(mask: np.ndarray) -> list[list[int]]:
    """The ranges in which `mask`, bool of shape (N,), is True; both ends belong to them.

    Raises:
        ValueError: `mask` is of another dtype or shape.
    """
    mask = arguments.array("mask", mask)
    if mask.dtype != bool or mask.ndim != 1:
        raise ValueError(
            f"`mask` must be a bool array of shape (N,). Received: {mask.dtype} of shape "
            f"{mask.shape}: {brief(mask)}."
        )
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [[int(first), int(end) - 1] for first, end in edges.reshape(-1, 2)]


def from_ranges(ranges: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """The mask of `count` tensors that is True in `ranges`.

    Raises:
        ValueError: `ranges` are not ascending [first, last] pairs below `count`, or `count` is not
            that of a model.
    """
    if type(count) is not int or not 0 <= count <= MOST_TENSORS:
        raise ValueError(
            f"`count` must be an integer from 0 to {MOST_TENSORS}. Received: {brief(count)}."
        )
    mask = np.zeros(count, bool)
    end = -1
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
        mask[pair[0] : end + 1] = True
    return mask

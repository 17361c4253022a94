"""Sets of tensors as they stand in files: [first, last] ranges, both ends belong to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief

MOST_TENSORS = 100_000  # a file that claims more is not of a model


def to_ranges(mask: np.ndarray) -> list[list[int]]:
    """The ranges in which `mask`, bool of shape (N,), is True."""
    edges = np.flatnonzero(np.diff(np.r_[False, mask, False])).reshape(-1, 2)
    return [[first, after - 1] for first, after in edges.tolist()]


def from_ranges(ranges: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """The mask of `count` tensors that is True in `ranges`.

    Raises:
        TypeError, ValueError: no such ranges, or no such count.
    """
    mask = np.zeros(arguments.count("count", count, least=0, most=MOST_TENSORS), bool)
    end = -1
    for pair in arguments.items("ranges", ranges, what="[first, last] pairs"):
        whole = isinstance(pair, (list, tuple)) and [type(k) for k in pair] == [int, int]
        if not whole or not end < pair[0] <= pair[1] < count:
            raise ValueError(
                f"`ranges` must be ascending [first, last] pairs below {count}. Received: "
                f"{brief(pair)}."
            )
        end = pair[1]
        mask[pair[0] : end + 1] = True
    return mask

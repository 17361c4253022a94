"""Sets of tensors as they stand in files: [first, last] ranges, both ends belong to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief

MOST_TENSORS = 100_000  # a file that claims more is not of a model


def to_ranges(mask: np.ndarray) -> list[list[int]]:
    """The ranges in which `mask`, bool of shape (N,), is True."""
    return indices_to_ranges(np.flatnonzero(mask))


def indices_to_ranges(indices: Sequence[int] | np.ndarray) -> list[list[int]]:
    """The ranges that hold `indices`, of shape (n,) and ascending."""
    found = np.asarray(indices)
    runs = np.split(found, np.flatnonzero(np.diff(found) > 1) + 1)
    return [[int(run[0]), int(run[-1])] for run in runs if run.size]


def from_ranges(ranges: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """The mask of `count` tensors that is True in `ranges`; errors as of `ranges_to_indices`."""
    arguments.count("count", count, least=0, most=MOST_TENSORS)
    mask = np.zeros(count, bool)
    mask[ranges_to_indices(ranges, count)] = True
    return mask


def ranges_to_indices(ranges: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """The indices in `ranges`, ascending int64, of `count` tensors."""
    parts, end = [np.zeros(0, np.int64)], -1
    for pair in arguments.items("ranges", ranges, what="[first, last] pairs"):
        whole = isinstance(pair, (list, tuple)) and [type(k) for k in pair] == [int, int]
        if not whole or not end < pair[0] <= pair[1] < count:
            raise ValueError(
                f"`ranges` must be ascending [first, last] pairs below {count}. Received: "
                f"{brief(pair)}."
            )
        end = pair[1]
        parts.append(np.arange(pair[0], end + 1))
    return np.concatenate(parts)

"""Where to cut a forward pass of which the backward pass keeps only what crosses a cut."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_HALVINGS = 14  # of the range in which the smallest limit is looked for


class Sizes(NamedTuple):
    """Bytes of a forward pass, after or in each of its ops; shape (ops,).

    Attributes:
        crossing: results that later ops take.
        taken: results of the op that the backward pass takes.
        largest: result of the op.
    """

    crossing: np.ndarray
    taken: np.ndarray
    largest: np.ndarray


def cuts(sizes: Sizes, start: int, keep: float) -> list[int]:
    """The ops after which to cut, so that little is kept at a time.

    When the backward pass is in a segment it holds what crosses the cuts before, what it takes of
    the segment, and an error as large as the segment's largest result. The last segment is kept
    as it is: the backward pass begins there.

    Args:
        sizes: of the forward pass.
        start: the op before the first that may run again; -1 where that is the very first.
        keep: as in `recompute`.

    Returns:
        Numbers of ops in ascending order, `start` first; `start` alone: no cut pays.
    """
    crossing = sizes.crossing
    least = [
        k
        for k in range(start + 1, len(crossing) - 1)
        if 0 < crossing[k] <= min(crossing[k - 1], crossing[k + 1])
    ]
    places = [start, *least]
    held = np.array([0.0, *crossing[least]])
    taken = np.add.reduceat(sizes.taken, np.array(places) + 1)
    largest = np.maximum.reduceat(sizes.largest, np.array(places) + 1)
    low, high = 0.0, float(taken.sum() + largest.max())
    found = _within(held, taken, largest, keep * high)
    if found is None:
        low, found = keep * high, [0]
        for _ in range(_HALVINGS):
            limit = (low + high) / 2
            tried = _within(held, taken, largest, limit)
            if tried is None:
                low = limit
            else:
                high, found = limit, tried
    return [places[k] for k in found]


def _within(
    held: np.ndarray, taken: np.ndarray, largest: np.ndarray, limit: float
) -> list[int] | None:
    """Cuts that keep to a limit of bytes, with as much kept at the end as fits; or None.

    Among the ways to cut at one place last, the one that has the least crossing the cuts before.
    """
    count = len(held)
    sums, before = np.full(count, np.inf), np.full(count, -1)
    sums[0] = 0.0
    rest = np.cumsum(taken[::-1])[::-1] + np.maximum.accumulate(largest[::-1])[::-1]
    for i in range(count):
        if sums[i] + rest[i] <= limit:
            found = [i]
            while before[found[0]] >= 0:
                found.insert(0, int(before[found[0]]))
            return found
        bytes_, most = sums[i], 0.0
        for j in range(i + 1, count):
            bytes_ += taken[j - 1]
            most = max(most, largest[j - 1])
            if bytes_ + most > limit:
                break
            if sums[i] + held[j] < sums[j]:
                sums[j], before[j] = sums[i] + held[j], i
    return None

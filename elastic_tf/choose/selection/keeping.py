"""A selection that keeps a limit of memory.

What a step keeps for its gradients is a sum over cost items; its peak is not, for the fullest
moment may be another one. So the selector gets room for so many kept bytes, the peak of what it
chose is computed, and the room follows from how far that is from the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.plan import Plan

if TYPE_CHECKING:
    from elastic_tf.memory import Limit

_TRIES = 8  # selections, at most
_LEFT = 0.01  # of the limit: so much room is not worth another selection
_CANDIDATES = 4  # single tensors looked at for the smallest step


def best_within(
    memory: Limit,
    select: Callable[[float, np.ndarray], Any],
    required: np.ndarray,
    affordable: np.ndarray,
) -> Any:
    """The most important selection found whose peak is within the limit.

    `select` gives the best one for so many kept bytes, beside some tensors; of the `affordable`
    ones, bool, shape (N,), each alone is within the time. None where the time admits no tensor.

    Raises:
        ValueError: no step fits; the message names the smallest limit.
    """
    members, sizes = memory.items

    def kept(mask: np.ndarray) -> float:
        return float(sizes[members[:, mask].any(axis=1)].sum())

    def peak(mask: np.ndarray) -> int:
        return memory.peak(Plan.from_mask(mask))

    tried = [required]
    if not required.any():
        tried = sorted(np.eye(len(required), dtype=bool)[affordable], key=kept)[:_CANDIDATES]
    if not tried:
        return None
    least = min(tried, key=peak)
    if peak(least) > memory.bytes:
        what = f"the {required.sum()} required tensors" if required.any() else "any tensor"
        given, smallest = (arguments.mebibytes(size) for size in (memory.bytes, peak(least)))
        raise ValueError(
            f"`memory` is too small to train {what}. Received: {given}; the smallest feasible "
            f"limit is {smallest}, weights and slots included. Give more, a smaller batch, or an "
            "optimizer with fewer slots."
        )
    low, high = kept(least), float(sizes.sum())
    best, room = None, high
    for _ in range(_TRIES):
        found = select(room, required)
        if found is None:
            break
        over = memory.peak(found.plan) - memory.bytes
        if over <= 0:
            if best is None or found.importance >= best.importance:
                best = found
            if room >= high:
                break
            low, room = room, room - over
        else:
            high = min(room, kept(found.mask))
            room = high - over
        if high - low < _LEFT * memory.bytes:
            break
        if not low < room < high:
            room = (low + high) / 2
    return best or select(kept(least), least)

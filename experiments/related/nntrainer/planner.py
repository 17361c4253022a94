"""Where each buffer stands: offsets at which no two that live at the same time overlap."""

from __future__ import annotations

from collections.abc import Sequence


def offsets(sizes: Sequence[int], lives: Sequence[tuple[int, int]]) -> list[int]:
    """Offsets of buffers in one piece of memory.

    One after the other takes the lowest gap that is large enough between the buffers that live at
    the same time: in the order in which they begin to live, those that live longest first; and
    once more, the largest first. The lower peak counts.

    Args:
        sizes: bytes of each buffer.
        lives: first and last execution order of each.

    Returns:
        The offset of each in bytes.

    Source: Moon et al., NNTrainer, ICSE 2024, Algorithm 2. The printed one takes the place of a
    dead tensor without asking for its size, or whether another one took it before. Its order alone
    gave peaks up to a fifth above the lower bound.
    """
    every = range(len(sizes))
    by_start = sorted(every, key=lambda k: (lives[k][0], -lives[k][1]))
    by_size = sorted(every, key=lambda k: (-sizes[k], lives[k][0]))
    tried = [_in_gaps(order, sizes, lives) for order in (by_start, by_size)]
    return min(tried, key=lambda found: max(map(int.__add__, found, sizes), default=0))


def _in_gaps(
    order: Sequence[int], sizes: Sequence[int], lives: Sequence[tuple[int, int]]
) -> list[int]:
    found = [0] * len(sizes)
    placed: list[int] = []
    for k in order:
        first, last = lives[k]
        beside = [n for n in placed if lives[n][0] <= last and first <= lives[n][1]]
        end = 0  # of what stands below
        for n in sorted(beside, key=lambda n: found[n]):
            if found[n] - end >= sizes[k]:
                break
            end = max(end, found[n] + sizes[n])
        found[k] = end
        placed.append(k)
    return found

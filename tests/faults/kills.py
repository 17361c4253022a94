"""End a small elastic training again and again, and start the same command until it is through.

Then weights, slots, history and selections are compared, bit for bit, with those of a training that
nothing happened to. Steps made again are what a fault costs.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from children import MOMENTS, Trial, Whole, start, whole

_SKIPPED = 3  # passes and batches left behind, at most, when a training goes on


def rows(kills: int, rng: random.Random) -> list[dict[str, Any]]:
    """Try them all.

    Args:
        kills: at random times; signals are tried an eighth as often each, kills within a moment
            a sixteenth.
        rng: of the random times.
    """
    usual = whole()
    few, fewer = max(kills // 8, 1), max(kills // 16, 1)
    found = [
        _at_random_times(name, number, times, usual, rng)
        for name, number, times in (
            ("kill -9 at a random time", signal.SIGKILL, kills),
            ("SIGTERM at a random time", signal.SIGTERM, few),
            ("SIGINT at a random time", signal.SIGINT, few),
        )
    ]
    return found + [_within(name, fewer, usual, rng) for name in MOMENTS]


def _at_random_times(
    name: str, number: int, times: int, usual: Whole, rng: random.Random
) -> dict[str, Any]:
    trial = Trial(name, usual.outcome)

    def begin(folder: Path, out: Path) -> int:
        # a resumed training is shorter: some end before they are killed
        return start(folder, out, after=(rng.uniform(0.0, usual.seconds), number))

    trial.run(times, begin)
    return trial.row()


def _within(moment: str, times: int, usual: Whole, rng: random.Random) -> dict[str, Any]:
    """Kills before the n-th call of a function, n at random."""
    trial = Trial(f"kill -9 within: {moment}", usual.outcome)
    most = usual.calls[moment]

    def begin(folder: Path, out: Path) -> int:
        return start(folder, out, moment=(moment, rng.randint(1, most or _SKIPPED)))

    def cut(folder: Path, out: Path) -> int:
        return start(folder, out, moment=("rename", rng.randint(2, usual.calls["rename"])))

    # what is called only when a training goes on needs one that was cut before
    first: Callable[[Path, Path], int] | None = None if most else cut
    trial.run(times, begin, first=first)
    return trial.row()

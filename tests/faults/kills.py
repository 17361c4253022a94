"""End a small elastic training again and again, and start the same command until it is through.

Then weights, slots, history and selections are compared, bit for bit, with those of a training that
nothing happened to. Steps made again are what a fault costs.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults.children import MOMENTS, Trial, Whole, start, whole

_SKIPPED = 3  # passes and batches left behind, at most, when a training goes on


def rows(kills: int, jobs: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Try them all.

    Args:
        kills: at random times; kills within a moment are tried a twentieth as often.
        jobs: trainings at the same time.
        rng: of the random times.
    """
    usual = whole()
    yield _at_random_times(usual).row(kills, jobs=jobs, rng=rng)
    for moment in MOMENTS:
        yield _within(moment, usual).row(max(kills // 20, 1), jobs=jobs, rng=rng)


def _at_random_times(usual: Whole) -> Trial:
    def begin(folder: Path, out: Path, rng: random.Random) -> int:
        # a resumed training is shorter: some end before they are killed
        return start(folder, out, after=(rng.uniform(0.0, usual.seconds), signal.SIGKILL))

    return Trial("kill -9 at a random time", usual.outcome, begin)


def _within(moment: str, usual: Whole) -> Trial:
    """Kills before the n-th call of a function, n at random."""
    most = usual.calls[moment]

    def begin(folder: Path, out: Path, rng: random.Random) -> int:
        if not most and rng.random() < 0.5:  # or else it would never get further than there
            return start(folder, out)
        return start(folder, out, moment=(moment, rng.randint(1, most or _SKIPPED)))

    def cut(folder: Path, out: Path, rng: random.Random) -> int:
        return start(folder, out, moment=("rename", rng.randint(2, usual.calls["rename"])))

    # what is called only when a training goes on needs one that was cut before
    return Trial(f"kill -9 within: {moment}", usual.outcome, begin, None if most else cut)

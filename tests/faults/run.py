"""Try faults on small elastic trainings: which were tried how often, and what was lost.

A training is killed again and again, and the same command is started until it is
through. Then weights, slots, history and selections are compared, bit for bit, with those of a
training that nothing happened to. Steps made again are what a fault costs.

Example: python tests/faults/run.py --kills 200 --out experiments/results/faults.json
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from elastic_tf.app.commands import commandline  # before TensorFlow: it quiets its start-up

# isort: split
from faults.children import MOMENTS, Whole, start, tried, whole

from elastic_tf.app.commands.commandline import option
from elastic_tf.files import write_json

_SKIPPED = 3  # passes and batches left behind, at most, when a training goes on


def kills(times: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """At random times; within a moment a twentieth as often."""
    usual = whole()

    def begin(folder: Path, out: Path, rng: random.Random) -> int:
        # a resumed training is shorter: some end before they are killed
        return start(folder, out, kill_after=rng.uniform(0.0, usual.seconds))

    yield tried("kill -9 at a random time", usual.outcome, begin, times, rng)
    for moment in MOMENTS:
        yield _within(moment, usual, max(times // 20, 1), rng)


def _within(moment: str, usual: Whole, times: int, rng: random.Random) -> dict[str, Any]:
    """Kills before the n-th call of a function, n at random."""
    most = usual.calls[moment]

    def begin(folder: Path, out: Path, rng: random.Random) -> int:
        if not most and rng.random() < 0.5:  # or else it would never get further than there
            return start(folder, out)
        return start(folder, out, moment=(moment, rng.randint(1, most or _SKIPPED)))

    def cut(folder: Path, out: Path, rng: random.Random) -> int:
        return start(folder, out, moment=("rename", rng.randint(2, usual.calls["rename"])))

    # what is called only when a training goes on needs one that was cut before
    first = None if most else cut
    return tried(f"kill -9 within: {moment}", usual.outcome, begin, times, rng, first=first)


PARTS = {"kills": kills}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of the trial."""

    kills: int = option(200, help="kills at random times; other faults are tried less often")
    parts: tuple[str, ...] = option(tuple(PARTS), help="of the faults", choices=[*PARTS])
    seed: int = option(0, help="of the random times")
    out: Path = option(Path("experiments/results/faults.json"), help="where the figures go")


def main(arguments: list[str] | None = None) -> None:
    """Try everything, print the table, write the figures; end with 1 where something was lost."""
    settings = commandline.parse(Settings, __doc__ or "", arguments)
    parts: dict[str, Any] = json.loads(settings.out.read_text()) if settings.out.exists() else {}
    for name in settings.parts:
        started = time.perf_counter()
        rows: list[dict[str, Any]] = []
        for row in PARTS[name](settings.kills, random.Random(settings.seed)):
            rows.append(row)
            parts[name] = {
                "command": f"python tests/faults/run.py --parts {name} --kills {settings.kills} "
                f"--seed {settings.seed}",
                "date": date.today().isoformat(),
                "minutes": round((time.perf_counter() - started) / 60.0, 1),
                "data": rows,
            }
            write_json(settings.out, parts)
    print("\n" + markdown(parts))
    raise SystemExit(not all(row["as_expected"] for part in parts.values() for row in part["data"]))


def markdown(parts: dict[str, Any]) -> str:
    """The table of all that was tried, as it stands in the documentation."""
    rows = [row for name in PARTS if name in parts for row in parts[name]["data"]]
    lines = ["| fault | times tried | outcome | lost |", "|---|---|---|---|"]
    lines += [f"| {r['fault']} | {r['tried']} | {r['outcome']} | {r['lost']} |" for r in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    commandline.run(main)

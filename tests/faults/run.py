"""Try faults on small elastic trainings: which were tried how often, and what was lost.

Example: python tests/faults/run.py --kills 200 --out experiments/results/faults.json
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from elastic_tf.commands import commandline  # before TensorFlow: it quiets its start-up

# isort: split
from faults import disks, kills, probes, values

from elastic_tf.commands.commandline import option
from elastic_tf.files.atomic import write_json

PARTS = {
    "kills": kills.rows,
    "disks": disks.rows,
    "values": values.rows,
    "probes": probes.rows,
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of the trial."""

    kills: int = option(200, help="kills at random times; other faults are tried less often")
    parts: tuple[str, ...] = option((), help="of the faults; all by default", choices=[*PARTS])
    jobs: int = option(1, help="trainings at the same time")
    seed: int = option(0, help="of the random times")
    out: Path = option(Path("experiments/results/faults.json"), help="where the figures go")


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Try everything, print the table, write the figures; parts not tried stay as they are."""
    settings = commandline.parse(Settings, __doc__ or "", arguments)
    parts: dict[str, Any] = json.loads(settings.out.read_text()) if settings.out.exists() else {}
    for name in settings.parts or PARTS:
        started = time.perf_counter()
        rows: list[dict[str, Any]] = []
        for row in PARTS[name](settings.kills, settings.jobs, random.Random(settings.seed)):
            rows.append(row)
            parts[name] = {
                "command": f"python tests/faults/run.py --parts {name} --kills {settings.kills} "
                f"--jobs {settings.jobs} --seed {settings.seed}",
                "date": date.today().isoformat(),
                "minutes": round((time.perf_counter() - started) / 60.0, 1),
                "data": rows,
            }
            write_json(settings.out, parts)
    print("\n" + markdown(parts))
    return parts


def markdown(parts: dict[str, Any]) -> str:
    """The table of all that was tried, as it stands in the documentation."""
    rows = [row for name in PARTS if name in parts for row in parts[name]["data"]]
    lines = ["| fault | times tried | outcome | lost |", "|---|---|---|---|"]
    lines += [f"| {r['fault']} | {r['tried']} | {r['outcome']} | {r['lost']} |" for r in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    commandline.run(main)

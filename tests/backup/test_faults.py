"""A quick part of the faults that `make faults` tries for an hour."""

from __future__ import annotations

import json
import random
from pathlib import Path

from faults import disks, run


def test_damaged_files_are_found_out():
    rows = list(disks.files(5, random.Random(0)))
    assert [row["outcome"] for row in rows if not row["as_expected"]] == []
    assert len(rows) == 2 * len(disks.KINDS) + 1


def test_the_documentation_states_what_was_found():
    root = Path(__file__).resolve().parents[2]
    parts = json.loads((root / "experiments/results/faults.json").read_text())
    assert run.markdown(parts) in (root / "elastic_tf/docs/keras.md").read_text()
    assert all(row["as_expected"] for part in parts.values() for row in part["data"])

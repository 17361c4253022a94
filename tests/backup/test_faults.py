"""What `make faults` tried for an hour."""

from __future__ import annotations

import json
from pathlib import Path

from faults import run


def test_the_documentation_states_what_was_found():
    root = Path(__file__).resolve().parents[2]
    parts = json.loads((root / "experiments/results/faults.json").read_text())
    assert run.markdown(parts) in (root / "elastic_tf/docs/keras.md").read_text()
    assert all(row["as_expected"] for part in parts.values() for row in part["data"])

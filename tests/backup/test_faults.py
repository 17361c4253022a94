"""A quick part of the faults that `make faults` tries for an hour."""

import json
from pathlib import Path

import pytest
from faults import fuzz, run


@pytest.mark.filterwarnings("ignore:The other backup is taken")
def test_damaged_files_are_refused_or_read_whole(tmp_path):
    found, failures = fuzz.tried(inputs=400, seed=1, folder=tmp_path)
    assert failures == []
    assert found["over_a_second"] == 0
    for name, counts in found["outcomes"].items():  # both happen, or nothing was tried
        assert counts["ValueError"] > 0, name
    assert found["outcomes"]["history.jsonl"]["read"] > 0


def test_the_documentation_states_what_was_found():
    root = Path(__file__).resolve().parents[2]
    parts = json.loads((root / "experiments/results/faults.json").read_text())
    assert run.markdown(parts) in (root / "elastic_tf/docs/keras.md").read_text()
    assert all(row["as_expected"] for part in parts.values() for row in part["data"])

"""A quick part of the faults that `make faults` tries for an hour."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from faults import disks, run, values


def test_damaged_files_are_found_out():
    rows = list(disks.files(5, random.Random(0)))
    assert [row["outcome"] for row in rows if not row["as_expected"]] == []
    assert len(rows) == 2 * len(disks.KINDS) + 1


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (lambda content: content[:-1], "0 refused by name, 3 read unchanged, 0 misread"),
        (
            lambda content: re.sub(rb'"sha256": "\w+"', b'"other": 0', content).replace(
                b'"t_forward": 50.0', b'"t_forward": 51.0'
            ),
            "0 refused by name, 0 read unchanged, 3 misread",
        ),
    ],
)
def test_a_profile_that_is_read_all_the_same_is_compared(monkeypatch, change, outcome):
    monkeypatch.setattr(disks, "damaged", lambda content, *_: change(content))
    row = disks._profile("cut off", 3, random.Random(0))
    assert row["outcome"] == outcome
    assert row["as_expected"] == outcome.endswith(" 0 misread")


def test_the_documentation_states_what_was_found():
    root = Path(__file__).resolve().parents[2]
    parts = json.loads((root / "experiments/results/faults.json").read_text())
    assert run.markdown(parts) in (root / "elastic_tf/docs/keras.md").read_text()
    assert all(row["as_expected"] for part in parts.values() for row in part["data"])


@pytest.mark.slow
def test_a_step_whose_gradients_spoil_the_weights_is_left_out(tmp_path):
    said = values._with("skip", 3, tmp_path, random.Random(0))
    assert said == "the step is left out, to the end"

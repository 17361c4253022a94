"""Damaged files of every kind are refused or read whole; `make faults` tries many more."""

from __future__ import annotations

import pytest
from faults import fuzz


@pytest.mark.filterwarnings("ignore:The other backup is taken")
def test_damaged_files_are_refused_or_read_whole(tmp_path):
    found, failures = fuzz.tried(inputs=400, seed=1, folder=tmp_path)
    assert failures == []
    assert found["over_a_second"] == 0
    for name, counts in found["outcomes"].items():  # both happen, or nothing was tried
        assert counts["ValueError"] > 0, name
    assert found["outcomes"]["history.jsonl"]["read"] > 0

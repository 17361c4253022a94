"""A quick part of the faults that `make faults` tries for an hour."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import interrupted
import pytest
import tensorflow as tf
from faults import fuzz, run

SECONDS = 600  # a process that hangs is ended after so many; a busy machine takes long


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


@pytest.mark.hours
def test_a_killed_process_goes_on_with_the_same_command(tmp_path, deterministic):
    out = tmp_path / "outcome.json"

    def ended(*moment: str) -> int:
        command = [sys.executable, interrupted.__file__, tmp_path / "backups", out, *moment]
        return subprocess.run([*map(str, command)], timeout=SECONDS).returncode

    for moment in ("array:150", "rename:3", "importance:1"):
        assert ended(moment) == -signal.SIGKILL
    assert ended() == 0
    whole = interrupted.train(tmp_path / "whole")
    assert json.loads(out.read_text()) == json.loads(json.dumps(whole))
    tf.keras.backend.clear_session()

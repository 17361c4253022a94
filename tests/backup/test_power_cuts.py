"""kill -9 in a process of its own, again and again, and the same command each time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import interrupted
import pytest
import tensorflow as tf

SECONDS = 600  # a process that hangs is ended after so many; a busy machine takes long


def run(*arguments: object) -> int:
    command = [sys.executable, interrupted.__file__, *map(str, arguments)]
    return subprocess.run(command, timeout=SECONDS, env=None).returncode


@pytest.mark.hours
def test_a_killed_process_goes_on_with_the_same_command(tmp_path, deterministic):
    backups, out = tmp_path / "backups", tmp_path / "outcome.json"
    for moment in ("array:150", "rename:3", "importance:1"):
        assert run(backups, out, moment) == -signal.SIGKILL
    assert run(backups, out) == 0
    whole = interrupted.train(tmp_path / "whole")
    assert json.loads(out.read_text()) == json.loads(json.dumps(whole))
    tf.keras.backend.clear_session()

"""What a time was measured on, and under which settings."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from elastic_tf.timing import runtime
from elastic_tf.timing.runtime import (
    RuntimeSettings,
    describe_device,
    restart_under,
    usable_cores,
)

ALL = RuntimeSettings(onednn=True, inter_op_threads=2, intra_op_threads=3)


def test_environment_and_settings_are_the_same_thing_said_twice(monkeypatch):
    for name, value in ALL.environment().items():
        monkeypatch.setenv(name, value)
    assert RuntimeSettings.of_environment() == ALL
    assert RuntimeSettings.of_environment(xla=True).xla


def test_restart_under_starts_the_program_again_once(monkeypatch, capsys):
    monkeypatch.setattr(runtime.os, "execve", lambda *given: started.append(given))
    started = []
    restart_under(RuntimeSettings(inter_op_threads=3), ["program.py", "--word"])
    ((python, words, environment),) = started
    assert (
        words == [python, "program.py", "--word"] and environment["TF_NUM_INTEROP_THREADS"] == "3"
    )
    assert "Starting again" in capsys.readouterr().out
    for name, value in environment.items():  # as the started program finds them
        monkeypatch.setenv(name, value)
    restart_under(RuntimeSettings(), ["program.py"])
    assert len(started) == 1


def test_restart_under_goes_on_where_the_settings_hold_already(monkeypatch):
    monkeypatch.setattr(runtime.os, "execve", lambda *_: pytest.fail("started again"))
    restart_under(RuntimeSettings.of_environment(), sys.argv)


def test_describe_device_gives_json_values():
    device = describe_device()
    assert json.loads(json.dumps(device)) == device
    assert device["name"] and device["kind"] in ("cpu", "gpu")
    assert device["cores"] == usable_cores() >= 1 and device["tensorflow"] == tf.__version__


def test_describe_device_names_the_board(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "Raspberry Pi 4 Model B\0")
    assert describe_device()["name"] == "Raspberry Pi 4 Model B"

"""What doctor finds on machines that are made up."""

from __future__ import annotations

import json
import os
import subprocess
import types
import warnings
from importlib import metadata

import pytest

from elastic_tf.commands import doctor
from elastic_tf.commands.doctor import BROKEN, NOTE, OK, Finding
from elastic_tf.timing import runtime

DEVICE = {"name": "Board 5", "kind": "cpu", "onednn": False, "tensorflow": "2.15.1"}


@pytest.mark.parametrize("state", [OK, BROKEN])
def test_doctor_says_what_to_fix_and_ends_with_1_where_it_cannot_train(
    state, tmp_path, monkeypatch, capsys
):
    there = DEVICE if state == OK else None
    monkeypatch.setattr(doctor, "tensorflow", lambda: (Finding("TF", state, "x", "Do."), there))
    monkeypatch.setattr(doctor, "memory", lambda: Finding("memory", NOTE, "little"))
    ended = pytest.raises(SystemExit, match="1") if state == BROKEN else warnings.catch_warnings()
    with ended:
        doctor.main(["--out", str(tmp_path / "runs")])
    said = capsys.readouterr().out
    assert ("oneDNN" in said) == (state == OK)
    assert "TF: Do.\n" in said
    last = "It cannot train before this is fixed: TF." if state == BROKEN else "Ready to train."
    assert said.splitlines()[-1] == last
    assert list(tmp_path.iterdir()) == []


def test_packages_are_compared_with_what_is_asked_for(monkeypatch):
    asked = ["one==1.0", 'four==4; platform_machine == "abacus"', 'five; extra == "test"']
    monkeypatch.setattr(metadata, "requires", lambda name: asked)
    monkeypatch.setattr(metadata, "version", lambda name: "1.0")
    assert doctor.packages() == Finding("packages", OK, "all 1 are there in the versions asked for")
    asked += ["two>=2"]
    found = doctor.packages()
    assert (found.state, found.found) == (BROKEN, "two 1.0, asked for >=2")
    assert found.fix.endswith("-m pip install one==1.0 'two>=2'")


def test_packages_that_are_missing_are_named(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    with monkeypatch.context() as patch:
        patch.setattr(metadata, "requires", missing)
        assert doctor.packages().state == NOTE
    monkeypatch.setattr(metadata, "requires", lambda name: ["one"])
    monkeypatch.setattr(metadata, "version", missing)
    assert doctor.packages().found == "one is not installed"


@pytest.mark.parametrize(
    ("code", "said", "state", "found"),
    [
        (0, "", OK, "2.15.1 trains on Board 5 (cpu)"),
        (1, "Traceback\nImportError: no libfoo\n", BROKEN, "ImportError: no libfoo"),
        (-4, "", BROKEN, "ended by an illegal instruction"),
        (-9, "", BROKEN, "ended with code -9"),
    ],
)
def test_tensorflow_is_tried_in_a_process_of_its_own(monkeypatch, code, said, state, found):
    out = "something\n" + json.dumps(DEVICE) + "\n"
    done = types.SimpleNamespace(returncode=code, stdout=out, stderr=said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    finding, device = doctor.tensorflow()
    assert (finding.state, finding.found) == (state, found)
    assert (device == DEVICE) == (state == OK)
    assert bool(finding.fix) == (state == BROKEN)


def test_tensorflow_trains_here():
    finding, device = doctor.tensorflow()
    assert finding.state == OK, finding
    assert device["kind"] in ("cpu", "gpu")


def test_tensorflow_that_hangs_is_broken(monkeypatch):
    monkeypatch.setattr(doctor, "_STEP", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "_SECONDS", 0.2)
    assert doctor.tensorflow()[0].found == "no step in 0.2 s"


@pytest.mark.parametrize(("threads", "state"), [("", OK), ("4", OK), ("5", NOTE)])
def test_more_threads_than_cores_are_noted(monkeypatch, threads, state):
    monkeypatch.setattr(runtime, "usable_cores", lambda: 4)
    monkeypatch.delenv("TF_NUM_INTEROP_THREADS", raising=False)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", threads)
    assert doctor.cores().state == state


@pytest.mark.parametrize(
    ("device", "state"),
    [({"onednn": True}, OK), ({"onednn": False}, NOTE), ({"onednn": False, "kind": "gpu"}, OK)],
)
def test_onednn_that_is_off_is_noted(device, state):
    assert doctor.onednn({**DEVICE, **device}).state == state


@pytest.mark.parametrize(("running", "state"), [(0.9, OK), (1.1, NOTE)])
def test_a_busy_machine_is_noted(monkeypatch, running, state):
    monkeypatch.setattr(runtime, "usable_cores", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (running, 0.0, 0.0))
    assert doctor.machine_load().state == state


@pytest.mark.parametrize(("free", "state"), [(3.0, OK), (1.0, NOTE), (0.05, BROKEN)])
def test_a_disk_that_is_full_is_told(tmp_path, monkeypatch, free, state):
    usage = types.SimpleNamespace(free=free * 2**30)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    assert doctor.disk(tmp_path / "deep" / "runs").state == state
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_broken(tmp_path):
    (tmp_path / "file").write_text("")
    finding = doctor.disk(tmp_path / "file" / "runs")
    assert finding.state == BROKEN and "Not a directory" in finding.found

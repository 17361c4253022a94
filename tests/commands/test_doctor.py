"""What doctor finds on machines that are made up."""

from __future__ import annotations

import json
import resource
import subprocess
import types
import warnings
from pathlib import Path

import pytest

from elastic_tf.commands import doctor
from elastic_tf.commands.doctor import BROKEN, NOTE, OK, Finding

DEVICE = {"name": "Board 5", "kind": "cpu", "tensorflow": "2.15.1"}


@pytest.mark.parametrize("state", [OK, BROKEN])
def test_doctor_says_what_to_fix_and_ends_with_1_where_it_cannot_train(
    state, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(doctor, "tensorflow", lambda: Finding("TF", state, "x", "Do."))
    monkeypatch.setattr(doctor, "gpu", lambda: Finding("GPU", OK, "none"))
    monkeypatch.setattr(doctor, "memory", lambda: Finding("memory", NOTE, "little"))
    ended = pytest.raises(SystemExit, match="1") if state == BROKEN else warnings.catch_warnings()
    with ended:
        doctor.main(["--out", str(tmp_path / "runs")])
    said = capsys.readouterr().out
    assert "TF: Do.\n" in said
    last = "It cannot train before this is fixed: TF." if state == BROKEN else "Ready to train."
    assert said.splitlines()[-1] == last
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("No broken requirements found.\n", OK),
        ("other 1.0 requires two, which is not installed.\n", OK),
        ("elastic_tf 0.1.0 has requirement two>=2, but you have two 1.0.\n", BROKEN),
    ],
)
def test_packages_are_compared_with_what_is_asked_for(monkeypatch, said, state):
    done = types.SimpleNamespace(stdout=said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    found = doctor.packages()
    assert found.state == state
    assert ("two>=2" in found.found) == (state == BROKEN)


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
    finding = doctor.tensorflow()
    assert (finding.state, finding.found) == (state, found)
    assert bool(finding.fix) == (state == BROKEN)


@pytest.mark.parametrize(
    "said",
    ["pthread_create() failed (11 vs. 0)", "MemoryError", "failed to map segment from shared"],
)
def test_too_little_memory_is_no_broken_installation(monkeypatch, said):
    done = types.SimpleNamespace(returncode=-6, stdout="", stderr=f"{said}\naborted\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert "ran out of memory" in doctor.tensorflow().fix


def test_tensorflow_that_hangs_is_broken(monkeypatch):
    monkeypatch.setattr(doctor, "_STEP", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "_SECONDS", 0.2)
    finding = doctor.tensorflow()
    assert finding.found == "no step in 0.2 s"
    assert "ulimit -a" in finding.fix


@pytest.mark.parametrize(
    ("told", "driver", "state", "found", "fix"),
    [
        ({}, None, OK, "none: it trains on the processor", ""),
        ({}, "/bin/nvidia-smi", NOTE, "sees no GPU; TensorFlow is built for CUDA 12.2", "and-cuda"),
        ({"for": []}, "/bin/nvidia-smi", NOTE, "built for processors alone", "and-cuda"),
        ({"names": ["Orin"], "grows": [True]}, None, OK, "Orin; TensorFlow is", ""),
        ({"names": ["Orin"], "grows": [False]}, None, NOTE, "Orin", "ALLOW_GROWTH=true"),
    ],
)
def test_gpus_are_told_and_why_there_is_none(monkeypatch, told, driver, state, found, fix):
    known = {"version": "2.15.1", "for": ["CUDA 12.2"], "names": [], "grows": [], **told}
    done = types.SimpleNamespace(stdout=f"started\n{json.dumps(known)}\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: driver)
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    finding = doctor.gpu()
    assert finding.state == state
    assert found in finding.found
    assert fix in finding.fix
    assert bool(fix) == bool(finding.fix)


@pytest.mark.parametrize(
    ("limit", "state", "said"),
    [
        (2**29, NOTE, "0.5 GiB free"),
        (3 * 2**30, OK, "3.0 GiB free"),
        (2**60, OK, "4.0 GiB free"),
        (resource.RLIM_INFINITY, OK, "4.0 GiB free"),
    ],
)
def test_memory_is_what_the_limit_of_the_shell_leaves(monkeypatch, limit, state, said):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "MemAvailable: 4194304 kB\n")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    monkeypatch.setattr(doctor, "container_memory", lambda: 1 << 63)
    finding = doctor.memory()
    assert (finding.state, finding.found) == (state, said)
    assert ("ulimit -v" in finding.fix) == (state == NOTE)


def test_memory_is_what_the_container_leaves(monkeypatch):
    monkeypatch.setattr(doctor, "container_memory", lambda: 2**20)
    finding = doctor.memory()
    assert (finding.state, finding.found) == (NOTE, "0.0 GiB free")
    assert "control group" in finding.fix


@pytest.mark.parametrize(("free", "state"), [(3.0, OK), (1.0, NOTE)])
def test_a_disk_that_is_full_is_told(tmp_path, monkeypatch, free, state):
    usage = types.SimpleNamespace(free=free * 2**30)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    assert doctor.disk(tmp_path / "deep" / "runs").state == state
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_broken(tmp_path):
    (tmp_path / "file").write_text("")
    finding = doctor.disk(tmp_path / "file" / "runs")
    assert finding.state == BROKEN and "Not a directory" in finding.found

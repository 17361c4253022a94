"""What doctor finds on machines that are made up."""

from __future__ import annotations

import subprocess
import types
import warnings
from pathlib import Path

import pytest

from elastic_tf.app.commands import doctor
from elastic_tf.app.commands.doctor import BROKEN, NOTE, OK, Finding


@pytest.fixture
def child(monkeypatch):
    """Sets what child processes end with."""

    def ends(code=0, out="", error=""):
        done = types.SimpleNamespace(returncode=code, stdout=out, stderr=error)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    return ends


@pytest.mark.parametrize("state", [OK, BROKEN])
def test_doctor_says_what_to_fix_and_ends_with_1_where_it_cannot_train(
    state, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(doctor, "tensorflow", lambda: [Finding("TF", state, "x", "Do.")])
    monkeypatch.setattr(doctor, "memory", lambda: Finding("memory", NOTE, "little"))
    ended = pytest.raises(SystemExit, match="1") if state == BROKEN else warnings.catch_warnings()
    with ended:
        doctor.main(["--out", str(tmp_path / "runs")])
    said = capsys.readouterr().out
    assert "TF: Do.\n" in said
    last = "It cannot train before this is fixed: TF." if state == BROKEN else "Ready to train."
    assert said.splitlines()[-1] == last
    assert list(tmp_path.iterdir()) == []


def test_the_child_trains_a_step_and_tells_the_device(child, capsys):
    exec(doctor._STEP, {})
    child(out=capsys.readouterr().out)
    step, gpu = doctor.tensorflow()
    assert step.state == OK and " trains on " in step.found and gpu.check == "GPU"


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("No broken requirements found.\n", OK),
        ("other 1.0 requires two, which is not installed.\n", OK),
        ("elastic_tf 0.1.0 has requirement two>=2, but you have two 1.0.\n", BROKEN),
    ],
)
def test_packages_are_compared_with_what_is_asked_for(child, said, state):
    child(out=said)
    found = doctor.packages()
    assert found.state == state
    assert ("two>=2" in found.found) == (state == BROKEN)


@pytest.mark.parametrize(
    ("code", "said", "found", "fix"),
    [
        (1, "Traceback\nImportError: no libfoo\n", "ImportError: no libfoo", "packages anew"),
        (-4, "", "ended by an illegal instruction", "need AVX"),
        (-9, "", "ended with code -9", "packages anew"),
    ],
)
def test_a_tensorflow_that_does_not_train_is_broken(child, code, said, found, fix):
    child(code, error=said)
    (finding,) = doctor.tensorflow()
    assert (finding.state, finding.found) == (BROKEN, found)
    assert fix in finding.fix


def test_tensorflow_that_hangs_is_broken(monkeypatch):
    monkeypatch.setattr(doctor, "_STEP", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "_SECONDS", 0.2)
    (finding,) = doctor.tensorflow()
    assert finding.found == "no step in 0.2 s"
    assert "ulimit -a" in finding.fix


@pytest.mark.parametrize(
    ("told", "driver", "state", "found", "fix"),
    [
        ({}, None, OK, "none: it trains on the processor", ""),
        ({}, "/bin/nvidia-smi", NOTE, "sees no GPU; TensorFlow is built for CUDA 12.2", "and-cuda"),
        ({"for": []}, "/bin/nvidia-smi", NOTE, "built for processors alone", "and-cuda"),
        ({"gpus": ["Orin"], "grows": [True]}, None, OK, "Orin; TensorFlow is", ""),
        ({"gpus": ["Orin"], "grows": [False]}, None, NOTE, "Orin", "ALLOW_GROWTH=true"),
    ],
)
def test_gpus_are_told_and_why_there_is_none(monkeypatch, told, driver, state, found, fix):
    known = {"version": "2.15.1", "for": ["CUDA 12.2"], "gpus": [], "grows": [], **told}
    monkeypatch.setattr(doctor.shutil, "which", lambda name: driver)
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    finding = doctor.gpu(known)
    assert finding.state == state
    assert found in finding.found
    assert fix in finding.fix


def test_memory_is_what_is_free(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "MemAvailable: 4194304 kB\n")
    monkeypatch.setattr(doctor, "container_memory", lambda: 1 << 63)
    assert doctor.memory() == Finding("memory", OK, "4.0 GiB free")


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

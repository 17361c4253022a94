"""What doctor finds on machines that are made up."""

from __future__ import annotations

import json
import os
import subprocess
import types
import warnings
from importlib import metadata
from pathlib import Path

import pytest

from elastic_tf.commands import doctor
from elastic_tf.commands.checking import installation, machine, start_up, storage
from elastic_tf.commands.checking.finding import BROKEN, NOTE, OK, Finding
from elastic_tf.costs import energy
from elastic_tf.timing import runtime
from elastic_tf.timing.profile import TimingProfile

DEVICE = {"name": "Board 5", "kind": "cpu", "onednn": False, "tensorflow": "2.15.1"}
_GIB = 2**30


def report(monkeypatch, *findings):
    """doctor with these findings."""
    monkeypatch.setattr(doctor, "examine", lambda settings: list(findings))
    doctor.main([])


def test_doctor_says_what_to_mend_and_ends_with_1_where_it_cannot_train(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="1"):
        report(monkeypatch, Finding("disk", BROKEN, "full", "Make room."), Finding("a", OK, "b"))
    said = capsys.readouterr().out.splitlines()
    assert said[2].split() == ["disk", "broken", "full"]
    assert said[-2:] == ["disk: Make room.", "It cannot train before this is mended: disk."]


def test_doctor_is_content_with_notes(monkeypatch, capsys):
    report(monkeypatch, Finding("load", NOTE, "9", "Wait."))
    assert capsys.readouterr().out.splitlines()[-1] == "Ready to train."


@pytest.mark.parametrize("started", [DEVICE, None])
def test_doctor_asks_tensorflow_only_where_it_starts(tmp_path, monkeypatch, started):
    state = OK if started else BROKEN
    finding = Finding("TensorFlow", state, "")
    monkeypatch.setattr(installation, "tensorflow", lambda: ([finding], started))
    checks = [one.check for one in doctor.examine(doctor.Settings(out=tmp_path / "runs"))]
    assert len(checks) == len(set(checks))
    assert ("oneDNN" in checks) == ("profile" in checks) == (started is not None)
    for name in ("Python", "numpy", "cores", "load", "clock", "energy", "memory", "disk"):
        assert name in checks


@pytest.mark.parametrize(("asked", "state"), [(">=3.9", OK), ("<3.9", BROKEN)])
def test_python_is_held_against_what_is_asked(monkeypatch, asked, state):
    monkeypatch.setattr(metadata, "metadata", lambda name: {"Requires-Python": asked})
    assert installation.python().state == state


def test_packages_are_held_against_what_is_asked(monkeypatch):
    asked = [
        "one==1.0",
        "two>=2",
        "three<4",
        'four==4; platform_machine == "abacus"',
        'five; extra == "test"',
    ]
    there = {"elastic_tf": "0.1.0", "one": "1.0", "two": "1.9"}

    def version(name):
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(metadata, "requires", lambda name: asked)
    monkeypatch.setattr(metadata, "version", version)
    own, one, two, three = installation.packages()
    assert (own.state, one.state, one.found) == (OK, OK, "1.0")
    assert (two.state, two.found) == (BROKEN, "1.9, asked for is >=2")
    assert (three.state, three.found) == (BROKEN, "not installed")
    assert three.mend.endswith(" -m pip install 'three<4'")


def test_a_package_that_is_not_installed_is_a_note(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    (finding,) = installation.packages()
    assert finding.state == NOTE and "pip install ." in finding.mend


def child(monkeypatch, *, code=0, out="", error=""):
    """What is found where the child process ends like this."""
    done = types.SimpleNamespace(returncode=code, stdout=out, stderr=error)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    return installation.tensorflow()


def test_tensorflow_that_trains_tells_the_device(monkeypatch):
    findings, device = child(monkeypatch, out="something\n" + json.dumps(DEVICE) + "\n")
    assert device == DEVICE
    assert [one.state for one in findings] == [OK, OK]
    assert findings[0].found == "2.15.1 trains on Board 5 (cpu)"


def test_tensorflow_that_is_loud_is_a_note(monkeypatch):
    findings, _ = child(monkeypatch, out=json.dumps(DEVICE), error="\nW could not find CUDA\nmore")
    assert (findings[1].state, findings[1].found) == (NOTE, "says: W could not find CUDA")


@pytest.mark.parametrize(
    ("code", "error", "found"),
    [
        (1, "Traceback\nImportError: no libfoo\n", "ImportError: no libfoo"),
        (-4, "", "an illegal instruction"),
        (-9, "", "ended with code -9"),
    ],
)
def test_tensorflow_that_does_not_start_is_broken(monkeypatch, code, error, found):
    (finding,), device = child(monkeypatch, code=code, error=error)
    assert device is None
    assert finding.state == BROKEN and found in finding.found and finding.mend


def test_tensorflow_that_hangs_is_broken(monkeypatch):
    monkeypatch.setattr(installation, "_START_UP", ("-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(installation, "_SECONDS", 0.2)
    (finding,), device = installation.tensorflow()
    assert (finding.state, finding.found, device) == (BROKEN, "no step in 0.2 s", None)


@pytest.mark.slow
def test_start_up_trains_and_describes_the_device(capsys):
    start_up.main()
    assert json.loads(capsys.readouterr().out)["kind"] in ("cpu", "gpu")


@pytest.mark.parametrize(
    ("usable", "threads", "state"), [(4, "", OK), (2, "", NOTE), (4, "4", OK), (4, "5", NOTE)]
)
def test_cores_and_threads_that_do_not_fit_are_noted(monkeypatch, usable, threads, state):
    monkeypatch.setattr(runtime, "usable_cores", lambda: usable)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.delenv("TF_NUM_INTEROP_THREADS", raising=False)
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", threads)
    finding = machine.cores()
    assert finding.state == state
    assert f"{usable} of 4 usable" in finding.found


@pytest.mark.parametrize(
    ("onednn", "flags", "state", "has"),
    [
        (False, "flags : sse avx2", NOTE, "no"),
        (True, "flags : sse avx2", OK, "no"),
        (True, "flags : avx512f", OK, "yes"),
        (False, "Features : neon", NOTE, "unknown"),
    ],
)
def test_onednn_is_held_against_the_processor(tmp_path, onednn, flags, state, has):
    (tmp_path / "cpuinfo").write_text(flags)
    finding = machine.onednn({**DEVICE, "onednn": onednn}, tmp_path / "cpuinfo")
    assert finding.state == state
    assert finding.found.endswith(f"AVX-512: {has}")
    assert ("TF_ENABLE_ONEDNN_OPTS=1" in finding.mend) == (state == NOTE)


@pytest.mark.parametrize(("running", "state"), [(0.9, OK), (1.1, NOTE)])
def test_a_busy_machine_is_noted(monkeypatch, running, state):
    monkeypatch.setattr(runtime, "usable_cores", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (running, 0.0, 0.0))
    assert machine.load().state == state


@pytest.mark.parametrize(
    ("step", "state", "found"),
    [(1e-7, OK, "0.10 micro"), (1e-2, NOTE, "10000 micro"), (0.0, NOTE, "stands still")],
)
def test_the_clock_is_read_until_it_moves(step, state, found):
    times = (step * k for k in range(10_000))
    finding = machine.clock(lambda: next(times))
    assert finding.state == state and found in finding.found


def test_a_sensor_that_cannot_be_read_says_why(monkeypatch):
    def unreadable():
        warnings.warn("Permission denied: energy_uj", stacklevel=1)

    monkeypatch.setattr(energy, "find_sensor", unreadable)
    assert "Permission denied" in machine.sensor().mend
    monkeypatch.setattr(energy, "find_sensor", lambda: None)
    assert machine.sensor().found.startswith("no sensor")
    monkeypatch.setattr(energy, "find_sensor", lambda: types.SimpleNamespace(name="RAPL package"))
    assert machine.sensor() == Finding("energy", OK, "RAPL package")


@pytest.mark.parametrize(("free", "state"), [(3.0, OK), (1.5, NOTE), (0.5, BROKEN)])
def test_memory_that_is_short_is_told(tmp_path, free, state):
    path = tmp_path / "meminfo"
    path.write_text(f"MemTotal: {4 * 2**20} kB\nMemAvailable: {int(free * 2**20)} kB\n")
    finding = machine.memory(path)
    assert (finding.state, finding.found) == (state, f"{free:.1f} of 4.0 GiB free")
    assert machine.memory(tmp_path / "none").found == "not known on this system"


def test_a_directory_that_can_be_written_is_left_as_it_is(tmp_path):
    assert storage.run_directory(tmp_path / "deep" / "runs").state == OK
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_broken(tmp_path):
    (tmp_path / "file").write_text("")
    finding = storage.run_directory(tmp_path / "file" / "runs")
    assert finding.state == BROKEN and "Not a directory" in finding.found


@pytest.mark.parametrize(("free", "state"), [(3.0, OK), (1.0, NOTE), (0.05, BROKEN)])
def test_a_disk_that_is_full_is_told(tmp_path, monkeypatch, free, state):
    usage = types.SimpleNamespace(free=free * _GIB)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: usage)
    assert storage.disk(tmp_path).state == state


def test_data_sets_are_named(tmp_path, monkeypatch):
    (tmp_path / "stanford_dogs").mkdir()
    (tmp_path / "downloads").mkdir()
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert storage.data_sets() == Finding("data sets", OK, f"stanford_dogs in {tmp_path}")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "gone"))
    assert storage.data_sets().state == NOTE
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setattr(Path, "expanduser", lambda path: tmp_path / "home")
    assert storage.data_sets().state == OK


def saved(path, name="Board 5"):
    chain = TimingProfile.from_chain(t_dw=[1e3, 2e3], t_dy=[0, 3e3], t_forward=4e3)
    TimingProfile(4e3, chain.items, 2, device={"name": name}).save(path)
    return path


def test_a_profile_of_this_device_is_found_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package.json").write_text("{}")
    saved(tmp_path / "other.json", name="Board 4")
    finding = storage.profile(None, DEVICE)
    assert finding.state == NOTE and "elastic_tf profile" in finding.mend
    saved(tmp_path / "own.json")
    assert storage.profile(None, DEVICE) == Finding("profile", OK, "own.json")


def test_a_profile_that_is_given_is_checked(tmp_path):
    path = saved(tmp_path / "own.json")
    finding = storage.profile(path, DEVICE)
    assert finding.state == OK and "2 tensors, full step 10.0 ms" in finding.found
    finding = storage.profile(saved(tmp_path / "other.json", name="Board 4"), DEVICE)
    assert finding.state == NOTE and "measured on 'Board 4'" in finding.found
    path.write_text(path.read_text().replace('"count": 2', '"count": 3'))
    assert storage.profile(path, DEVICE).state == BROKEN
    assert storage.profile(tmp_path / "gone.json", DEVICE).state == BROKEN

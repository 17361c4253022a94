"""One writer at a time, with real processes: one wins, the others are told, nothing is torn."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from elastic_tf.backup.slots import Slots
from elastic_tf.files.file_lock import claim
from elastic_tf.runs import run as runs

RULE = "There is one writer."
# Without TensorFlow, which takes seconds to load.
START = """
import sys
sys.argv = ["-m"]
from pathlib import Path
from elastic_tf import runs, timing_file
from elastic_tf.backup import Slots
from elastic_tf.claims import claim
runs.describe_device = dict
path = Path({path!r})
"""
WAIT = """
print("ready", flush=True)
sys.stdin.read()
"""
CLAIM = "held = claim(path / 'lock', rule='', what=path)"


def process(path: Path, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START.format(path=str(path)) + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def other(path: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has run `code` and waits; it is killed in the end."""
    child = process(path, code + WAIT)
    try:
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        killed(child)


def killed(child: subprocess.Popen[str]) -> None:
    child.kill()  # kill -9
    child.communicate()


def test_a_claim_is_told_from_whom_and_survives_nobody(tmp_path):
    with other(tmp_path, CLAIM) as child:
        match = rf"one writer\. Received: '{tmp_path}', which process {child.pid} on '.+' since 2"
        with pytest.raises(ValueError, match=match):
            claim(tmp_path / "lock", rule=RULE, what=tmp_path)
        killed(child)
        assert (tmp_path / "lock").exists()  # nobody could tidy up
        with claim(tmp_path / "lock", rule=RULE, what=tmp_path):
            assert f"process {os.getpid()} on" in (tmp_path / "lock").read_text()
        assert list(tmp_path.iterdir()) == []


def test_a_process_has_one_claim_unless_it_shares(tmp_path):
    first = claim(tmp_path / "lock", rule=RULE, what="it", shared=True)
    with pytest.raises(ValueError, match=rf"Received: 'it', which this process \({os.getpid()}\)"):
        claim(tmp_path / "lock", rule=RULE, what="it")
    with claim(tmp_path / "lock", rule=RULE, what="it", shared=True):
        first.release()
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()
    del first
    assert claim(tmp_path / "lock", rule=RULE, what="it") is not None


def test_a_full_disk_leaves_the_claim_without_a_name(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        held = claim(tmp_path / "lock", rule=RULE, what=tmp_path)
    with pytest.raises(ValueError, match=RULE):
        claim(tmp_path / "lock", rule=RULE, what=tmp_path)
    held.release()
    claim(tmp_path / "lock", rule=RULE, what=tmp_path).release()


def test_a_claim_that_nobody_refers_to_is_given_back(tmp_path):
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        claim(tmp_path / "lock", rule=RULE, what="it")
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == len(before)


RACE = """
import os
got = 0
while got < 40:
    try:
        held = claim(path / "lock", rule="", what=path)
    except ValueError:
        continue
    os.close(os.open(path / "inside", os.O_CREAT | os.O_EXCL))  # fails if two are inside
    os.unlink(path / "inside")
    held.release()
    got += 1
print("done")
"""


def test_processes_that_race_are_never_inside_together(tmp_path):
    children = [process(tmp_path, RACE) for _ in range(3)]
    assert [child.communicate(timeout=120)[0] for child in children] == ["done\n"] * 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_written_with_a_warning(tmp_path, monkeypatch, number):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="run.lock' cannot be locked .*no other process writes"):
        run = runs.create(tmp_path, {"seed": 1})
    run.append_epoch({"loss": 1.0})
    run.finish({})
    assert len(runs.load(tmp_path).history) == 1
    with pytest.warns(UserWarning, match="lock' cannot be locked"):
        Slots(tmp_path / "backup").open()


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "valuable").write_text("data")
    (tmp_path / "lock").symlink_to("valuable")
    with pytest.raises(OSError, match="lock"):
        claim(tmp_path / "lock", rule=RULE, what="it")
    assert (tmp_path / "valuable").read_text() == "data"


RUN = """
try:
    run = runs.create(path, {"seed": 1})
    for epoch in range(20):
        run.append_epoch({"loss": 1.0})
    print("won", flush=True)
except ValueError as error:
    print(error, flush=True)
sys.stdin.read()
"""


def test_of_processes_that_start_one_run_one_wins_and_the_others_are_told(tmp_path):
    children = [process(tmp_path / "run", RUN) for _ in range(4)]
    said = [child.stdout.readline() for child in children]
    winner = said.index("won\n")
    told = [text for text in said if text != "won\n"]
    assert len(told) == 3
    assert all(f"which process {children[winner].pid} on" in text for text in told)
    assert [epoch["epoch"] for epoch in runs.load(tmp_path / "run").history] == [*range(20)]
    for child in children:
        killed(child)


def test_a_run_whose_writer_was_killed_is_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "describe_device", dict)
    with other(tmp_path, "run = runs.create(path, {'seed': 1}); run.append_epoch({})") as child:
        loaded = runs.load(tmp_path)  # anybody may read
        with pytest.raises(ValueError, match=f"which process {child.pid} on"):
            loaded.append_epoch({"loss": 1.0})
        with pytest.raises(ValueError, match=f"which process {child.pid} on"):
            runs.create(tmp_path, {"seed": 1})
    run = runs.create(tmp_path, {"seed": 1})
    run.append_epoch({"loss": 1.0})
    run.finish({"accuracy": 1.0})
    assert len(runs.load(tmp_path).history) == 2
    files = {"config.json", "history.jsonl", "result.json"}
    assert {path.name for path in tmp_path.iterdir()} == files


def test_a_finished_run_is_held_by_nobody(tmp_path):
    runs.create(tmp_path, {"seed": 1}).finish({})
    again = runs.create(tmp_path, {"seed": 1})
    assert again.result == {}
    assert not (tmp_path / "run.lock").exists()


def test_a_backup_of_another_process_is_left_alone(tmp_path):
    code = "slots = Slots(path); slots.open(); (path / 'a.part').write_bytes(b'half written')"
    with other(tmp_path, code) as child:
        for refused in (Slots(tmp_path).open, Slots(tmp_path).clear):
            with pytest.raises(ValueError, match=f"which process {child.pid} on"):
                refused()
        assert (tmp_path / "a.part").read_bytes() == b"half written"
    slots = Slots(tmp_path)
    slots.open()
    slots.write({"step": 1}, [("x", np.ones(3))])
    slots.close()
    assert slots.read().data == {"step": 1}


def test_a_run_goes_to_other_workers_without_its_claim(tmp_path):
    run = runs.create(tmp_path, {"seed": 1})
    sent = pickle.loads(pickle.dumps(run))
    sent.append_epoch({"loss": 1.0})
    assert json.loads((tmp_path / "history.jsonl").read_text())["epoch"] == 0
    sent.finish({})

"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import stat

import pytest

from elastic_tf.files import atomic


def test_write_text_replaces_what_was_there(tmp_path):
    path = tmp_path / "new" / "a.txt"
    atomic.write_text(path, "first")
    atomic.write_text(path, "zweite ä\n")
    assert path.read_text(encoding="utf-8") == "zweite ä\n"
    assert os.listdir(path.parent) == ["a.txt"]


@pytest.mark.parametrize("name", ["file", "file/new", "file/new/deeper"])
def test_a_file_where_a_directory_must_be_is_named(tmp_path, name):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OSError, match=f"Received: '{tmp_path / name}': .*Choose another path"):
        atomic.directory(tmp_path / name)
    with pytest.raises(OSError, match="There must be a directory"):
        atomic.write_text(tmp_path / name / "a.txt", "lost")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_new_file_is_as_the_umask_says(tmp_path, umask):
    before = os.umask(umask)
    try:
        atomic.write_text(tmp_path / "a.txt", "first")
        atomic.append_line(tmp_path / "b.txt", "first")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.txt", "b.txt")]
    assert modes == [0o666 & ~umask] * 2


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_write_text_keeps_who_may_read_a_file(tmp_path, mode):
    path = tmp_path / "a.txt"
    path.touch()
    path.chmod(mode)
    atomic.write_text(path, "second")
    assert path.read_text() == "second"
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_write_text_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch, failing):
    def fail(*_):
        raise OSError("no space left")

    path = tmp_path / "a.txt"
    atomic.write_text(path, "first")
    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="no space left"):
        atomic.write_text(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_write_json_can_be_read_back(tmp_path):
    data = {"rho": 0.5, "sets": [[0, 1], [2]], "name": "ä", "none": None}
    atomic.write_json(tmp_path / "a.json", data)
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == data


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_write_json_refuses_what_json_does_not_know(tmp_path, value):
    with pytest.raises(ValueError, match="JSON compliant"):
        atomic.write_json(tmp_path / "a.json", {"loss": value})
    assert os.listdir(tmp_path) == []


def test_write_json_writes_up_to_what_can_be_read(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    monkeypatch.setattr(atomic, "MOST_BYTES", 9)
    atomic.write_json(path, "ä")
    assert path.read_bytes() == b'"\\u00e4"\n'
    with pytest.raises(ValueError, match=r"at most 9 bytes.*Received: 10 bytes for '.*a\.json'"):
        atomic.write_json(path, "öa")
    assert path.read_bytes() == b'"\\u00e4"\n'


def test_append_line_adds_whole_lines(tmp_path):
    path = tmp_path / "new" / "a.jsonl"
    atomic.append_line(path, "1")
    atomic.append_line(path, "2")
    assert path.read_text() == "1\n2\n"

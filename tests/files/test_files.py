"""Files that appear whole or not at all."""

import os
import stat

import pytest

from elastic_tf.files import directory, write_json, write_text


def test_write_text_replaces_what_was_there(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "first")
    write_text(path, "zweite ä\n")
    assert path.read_text(encoding="utf-8") == "zweite ä\n"
    assert os.listdir(path.parent) == ["a.txt"]


@pytest.mark.parametrize("name", ["file", "file/new", "file/new/deeper"])
def test_a_file_where_a_directory_must_be_is_named(tmp_path, name):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OSError, match=f"Received: '{tmp_path / name}': .*Choose another path"):
        directory(tmp_path / name)
    with pytest.raises(OSError, match="There must be a directory"):
        write_text(tmp_path / name / "a.txt", "lost")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_who_may_read_a_file_is_what_the_umask_or_the_old_file_says(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "a.txt", "first")
    finally:
        os.umask(before)

    def mode() -> int:
        return stat.S_IMODE((tmp_path / "a.txt").stat().st_mode)

    assert mode() == 0o666 & ~umask
    (tmp_path / "a.txt").chmod(0o640)
    write_text(tmp_path / "a.txt", "second")
    assert mode() == 0o640


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_write_text_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch, failing):
    def fail(*_):
        raise OSError("no space left")

    path = tmp_path / "a.txt"
    write_text(path, "first")
    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="no space left"):
        write_text(path, "second")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_write_json_refuses_what_json_does_not_know(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert os.listdir(tmp_path) == []

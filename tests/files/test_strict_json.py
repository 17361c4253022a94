"""Files that claim or hold too much are refused with the reason."""

from __future__ import annotations

import io
import os

import pytest

from elastic_tf.files import strict_json


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": NaN}', "NaN', which is no finite number"),
        ('{"a": -Infinity}', "-Infinity', which is no finite number"),
        ('{"a": 1e999}', "1e999', which is no finite number"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": 1} {"b": 2}', "no JSON: Extra data"),
        ("", "no JSON: Expecting value"),
    ],
)
def test_what_is_not_json_alone_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        strict_json.parse(text.encode())


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(ValueError, match="no JSON: 'utf-8' codec"):
        strict_json.parse(b'{"a": "\xff"}')


def test_a_file_above_the_limit_is_not_read(tmp_path):
    path = tmp_path / "profile.json"
    with open(path, "wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(ValueError, match="is larger than 4 MiB"):
        strict_json.read(path)


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "loop"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, kind):
    path = tmp_path / "profile.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "profile.json")
    with pytest.raises((ValueError, OSError), match="no regular file|Is a dir|Too many levels"):
        strict_json.read(path)


def test_room_is_made_for_what_a_file_holds_alone(tmp_path, monkeypatch):
    """Python's `read(n)` makes room for n bytes at first: of 256 MiB for each image."""
    asked = []

    class File(io.FileIO):
        def read(self, size):
            asked.append(size)
            return super().read(size)

    path = tmp_path / "small"
    path.write_bytes(b"12345")
    monkeypatch.setattr("builtins.open", lambda name, mode: File(name, mode))
    assert strict_json.read_bytes(path, most=1 << 28) == b"12345"
    with pytest.raises(ValueError, match="larger"):
        strict_json.read_bytes(path, most=4)
    assert asked == [6, 5]

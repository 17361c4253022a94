"""Records as JSON: files that claim or hold too much are refused with the reason."""

import io
import os

import numpy as np
import pytest

from elastic_tf.files import from_ranges, parse_json, read_bytes, read_json, to_ranges


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a": NaN}', "NaN', which is no finite number"),
        (b'{"a": 1e999}', "1e999', which is no finite number"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 1} {"b": 2}', "no JSON: Extra data"),
        (b'{"a": "\xff"}', "no JSON: 'utf-8' codec"),
    ],
)
def test_what_is_not_json_alone_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "loop", "large"])
def test_what_is_no_file_or_too_large_is_refused_and_not_waited_for(tmp_path, kind):
    path = tmp_path / "profile.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "large":
        path.touch()
        os.truncate(path, 2**40)  # takes no room on the disk
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "profile.json")
    with pytest.raises((ValueError, OSError), match="no regular file|Is a dir|Too many|than 4 MiB"):
        read_json(path)


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
    assert read_bytes(path, most=1 << 28) == b"12345"
    with pytest.raises(ValueError, match="larger"):
        read_bytes(path, most=4)
    assert asked == [6, 5]


@pytest.mark.parametrize(
    ("mask", "ranges"), [([0, 0, 0], []), ([1, 1, 1], [[0, 2]]), ([1, 0, 1, 1], [[0, 0], [2, 3]])]
)
def test_masks_come_back_from_their_ranges(mask, ranges):
    mask = np.array(mask, bool)
    assert to_ranges(mask) == ranges
    np.testing.assert_array_equal(from_ranges(ranges, len(mask)), mask)


@pytest.mark.parametrize("given", [[[0, 4]], [[2, 1]], [[0, 2], [1, 3]], [[0]], [["0", 1]]])
def test_ranges_that_are_no_mask_are_refused(given):
    with pytest.raises(ValueError, match="`ranges` must be"):
        from_ranges(given, 4)
    with pytest.raises(ValueError, match="`count` must be"):
        from_ranges([], 10**12)

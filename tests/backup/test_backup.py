"""The two files of a backup: one of them is good at any moment."""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest
from interrupted import Kill, at_call

from elastic_tf.backup import slots as backup
from elastic_tf.backup.slots import Slots


def write(slots: Slots, number: int) -> None:
    slots.write({"number": number}, [("values/0", np.full(50, number))])


def written(path, count: int) -> Slots:
    slots = Slots(path)
    slots.open()
    for number in range(1, count + 1):
        write(slots, number)
    slots.close()
    return slots


def newest(path) -> int:
    data, arrays = Slots(path).read()
    np.testing.assert_array_equal(arrays["values/0"], np.full(50, data["number"]))
    return data["number"]


def kill() -> None:
    raise Kill


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_the_last_backup_is_read(tmp_path, count):
    written(tmp_path, count)
    assert newest(tmp_path) == count


def test_there_is_nothing_to_read_at_first(tmp_path):
    assert Slots(tmp_path / "new").read() is None


def test_every_kind_of_number_comes_back(tmp_path):
    arrays = {
        "half": np.float16([1.5, np.inf]),
        "double": np.float64([[0.1, np.nan]]),
        "long": np.int64([2**62, -1]),
        "bool": np.array([True, False]),
        "scalar": np.array(3, np.uint8),
        "nothing": np.zeros((0, 4), np.float32),
    }
    data = {"text": "ä", "nan": float("nan"), "large": 2**127, "list": [None, 0.1]}
    slots = written(tmp_path, 0)
    slots.write(data, arrays.items())
    state = slots.read()
    assert repr(state.data) == repr(data)
    assert state.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert state.arrays[name].dtype == array.dtype
        assert state.arrays[name].shape == array.shape
        assert state.arrays[name].tobytes() == array.tobytes()


def test_objects_are_not_written(tmp_path):
    slots = written(tmp_path, 1)
    with pytest.raises(ValueError, match="Object arrays"):
        slots.write({}, [("values/0", np.array([object()]))])
    assert newest(tmp_path) == 1


@pytest.mark.parametrize(
    "place, name, count",
    [(backup, "_add", k) for k in (1, 2)]
    + [(backup, "_digest", 1), (os, "fsync", 1), (os, "replace", 1)],
)
def test_a_kill_while_writing_leaves_the_backup_before(tmp_path, monkeypatch, place, name, count):
    slots = written(tmp_path, 3)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, at_call(count, kill, place, name))
        # the process is gone: nobody tidies up
        patch.setattr(backup.Path, "unlink", lambda path, missing_ok=False: None)
        with pytest.raises(Kill):
            write(slots, 4)
    assert newest(tmp_path) == 3
    again = Slots(tmp_path)
    again.read()
    write(again, 5)
    assert newest(tmp_path) == 5


def damaged(kind: str, content: bytes) -> bytes:
    half = len(content) // 2
    return {
        "empty": b"",
        "cut off in the head": content[:20],
        "cut off": content[:half],
        "one byte short": content[:-1],
        "longer": content + b"\0",
        "zeros": bytes(len(content)),
        "flipped": content[:half] + bytes([content[half] ^ 4]) + content[half + 1 :],
        "flipped in the number": content[:30] + bytes([content[30] ^ 1]) + content[31:],
        "of another program": b"PK\x03\x04" + content,
        "of another version": content.replace(b"backup    1", b"backup    2", 1),
    }[kind]


KINDS = [
    "empty",
    "cut off in the head",
    "cut off",
    "one byte short",
    "longer",
    "zeros",
    "flipped",
    "flipped in the number",
    "of another program",
    "of another version",
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_file_is_taken_when_one_is_damaged(tmp_path, kind):
    written(tmp_path, 4)  # 3 is in a, 4 in b
    path = tmp_path / "b"
    path.write_bytes(damaged(kind, path.read_bytes()))
    slots = Slots(tmp_path)
    with pytest.warns(UserWarning, match=r"other backup is taken: '.*b'"):
        assert slots.read().data["number"] == 3
    write(slots, 5)  # in the place of the damaged one
    assert newest(tmp_path) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_training_is_started_when_both_are_damaged(tmp_path, kind):
    written(tmp_path, 2)
    for name in "ab":
        path = tmp_path / name
        path.write_bytes(damaged(kind, path.read_bytes()))
    match = "is of format 2, this version reads 1" if kind == "of another version" else "/a'.*/b'"
    with pytest.raises(ValueError, match=match):
        Slots(tmp_path).read()


def test_every_flipped_bit_is_seen(tmp_path):
    written(tmp_path, 1)
    path = tmp_path / "a"
    content = path.read_bytes()
    for place in range(len(content)):
        wrong = bytearray(content)
        wrong[place] ^= 1 << place % 8
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="Remove"):
            Slots(tmp_path).read()


def test_a_full_disk_leaves_both_files(tmp_path):
    slots = written(tmp_path, 2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))  # bytes in a file
    try:
        with pytest.raises(OSError, match="too large"):
            write(slots, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert newest(tmp_path) == 2
    write(slots, 4)
    assert newest(tmp_path) == 4


def test_a_place_that_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"`backup_dir` must be.*file/backup.*Not a directory"):
        Slots(tmp_path / "file" / "backup").open()


def test_a_read_only_directory_is_refused(tmp_path, monkeypatch):
    def refuse(path, data):
        raise PermissionError(13, "Permission denied")  # root is denied nothing

    monkeypatch.setattr(backup.Path, "write_bytes", refuse)
    with pytest.raises(ValueError, match=r"`backup_dir` must be.*Permission denied"):
        Slots(tmp_path).open()


def test_clear_leaves_nothing_to_read(tmp_path):
    slots = written(tmp_path, 2)
    slots.clear()
    assert slots.read() is None
    write(slots, 1)
    assert newest(tmp_path) == 1


def test_two_trainings_do_not_share_a_directory(tmp_path):
    one, two = Slots(tmp_path), Slots(tmp_path)
    one.open()
    with pytest.raises(ValueError, match="which this process .* uses now"):
        two.open()
    one.close()
    two.open()
    two.close()

"""The two files of a backup: one of them is good at any moment."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from faults import fuzz, run
from interrupted import Kill, at_call, kill

from elastic_tf.train import saved as backup
from elastic_tf.train.saved import Slots


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


def test_the_last_backup_is_read_and_nothing_before_it_and_after_clear(tmp_path):
    assert Slots(tmp_path).read() is None
    for count in (1, 2, 3):
        slots = written(tmp_path / str(count), count)
        assert newest(tmp_path / str(count)) == count
    slots.clear()
    assert slots.read() is None


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
        found = state.arrays[name]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "place, name, count",
    [(backup, "_add", 1), (backup, "_add", 2), (os, "fsync", 1), (os, "replace", 1)],
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


def flipped(content: bytes) -> bytes:
    half = len(content) // 2
    return content[:half] + bytes([content[half] ^ 4]) + content[half + 1 :]


@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: content[:-1], flipped])
def test_the_other_file_is_taken_when_one_is_damaged(tmp_path, damage):
    written(tmp_path, 4)
    names = ("a.npz", "b.npz")  # 4 is in the first, 3 in the second
    contents = [(tmp_path / name).read_bytes() for name in names]
    (tmp_path / names[0]).write_bytes(damage(contents[0]))
    slots = Slots(tmp_path)
    with pytest.warns(UserWarning, match=r"other backup is taken: '.*a.npz' is no "):
        assert slots.read().data["number"] == 3
    write(slots, 5)  # in the place of the damaged one
    assert newest(tmp_path) == 5
    for name, content in zip(names, contents):
        (tmp_path / name).write_bytes(damage(content))
    with pytest.raises(ValueError, match=r"/a.npz' is no .*/b.npz' is no .*Remove"):
        slots.read()


def test_a_backup_of_another_version_and_a_place_that_is_no_directory_are_refused(
    tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(backup, "VERSION", 99)
        written(tmp_path, 1)
    with pytest.raises(ValueError, match=r"b.npz' is of format 99, this version reads 3\. Remove"):
        Slots(tmp_path).read()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"directory that can be written.*file/backup.*Not a dir"):
        Slots(tmp_path / "file" / "backup").open()


def test_two_trainings_do_not_share_a_directory(tmp_path):
    one, two = Slots(tmp_path), Slots(tmp_path)
    one.open()
    with pytest.raises(ValueError, match=f"Received: '{tmp_path}', which process {os.getpid()} on"):
        two.open()
    one.close()
    two.open()
    two.close()


@pytest.mark.filterwarnings("ignore:The other backup is taken")
def test_damaged_files_are_refused_or_read_whole(tmp_path):
    """A quick part of what `make faults` tries for an hour."""
    found, failures = fuzz.tried(inputs=400, seed=1, folder=tmp_path)
    assert failures == []
    assert found["over_a_second"] == 0
    for name, counts in found["outcomes"].items():  # both happen, or nothing was tried
        assert counts["ValueError"] > 0, name
    assert found["outcomes"]["history.jsonl"]["read"] > 0


def test_the_documentation_states_what_was_found():
    root = Path(__file__).resolve().parents[2]
    parts = json.loads((root / "experiments/results/faults.json").read_text())
    assert run.markdown(parts["kills"]["data"]) in (root / "elastic_tf/docs/keras.md").read_text()
    assert all(row["as_expected"] for part in parts.values() for row in part["data"])

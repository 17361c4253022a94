"""Archives of arrays that anybody may have written, and arrays larger than memory."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from elastic_tf.files import arrays


def packed(path, name: str, data: bytes):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, data)
    return path


def array(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


SHAPE = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n"


@pytest.mark.parametrize(
    "data",
    [
        array(SHAPE % ("<f8", "(100000000000000,)")),  # claims 800 TB
        array(SHAPE % ("<f8", "(3,)"), bytes(8)),
        array(SHAPE % ("|O", "(1,)"), b"cos\nsystem\n"),
        array("__import__('os').getcwd()"),
    ],
)
def test_arrays_that_are_none_are_refused(tmp_path, data):
    with pytest.raises(ValueError, match="is no archive of arrays: "):
        arrays.read(packed(tmp_path / "x.npz", "x.npy", data))


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x03\x04" + bytes(100), b"no archive"])
def test_a_file_that_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(ValueError, match="is no archive of arrays: "):
        arrays.read(tmp_path / "x.npz")


def test_one_array_without_a_name_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(ValueError, match="one array without a name"):
        arrays.read(tmp_path / "x.npy")


def test_arrays_come_back_by_name(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.arange(6.0).reshape(2, 3), b=np.array(True))
    found = arrays.read(tmp_path / "x.npz")
    np.testing.assert_array_equal(found["a"], np.arange(6.0).reshape(2, 3))
    assert found["b"].dtype == bool
    assert [*arrays.read(tmp_path / "x.npz", ["b", "c"])] == ["b"]


def test_an_array_within_the_limit_is_in_memory():
    made = arrays.array((2, 3), np.float32, memory=24)
    assert (type(made), made.shape, made.dtype) == (np.ndarray, (2, 3), np.float32)


def test_an_array_for_which_there_is_no_room_is_in_a_file(monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(np, "empty", full)
    made = arrays.array((2, 3), np.float32, memory=24)
    assert (type(made), made.shape) == (np.memmap, (2, 3))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads what Linux has mapped")
def test_a_larger_array_is_in_a_file_that_goes_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def is_mapped() -> bool:
        return str(tmp_path) in Path("/proc/self/maps").read_text()

    def fill(rows: list[int]) -> np.ndarray:
        made = arrays.array((2, 3), np.float32, memory=23)
        assert is_mapped()
        made[rows] = 7.0
        return made

    made = fill([0, 1])
    np.testing.assert_array_equal(made, np.full((2, 3), 7.0))
    assert not [*tmp_path.iterdir()]
    del made
    assert not is_mapped()
    with pytest.raises(IndexError):
        fill([2])
    assert not is_mapped()

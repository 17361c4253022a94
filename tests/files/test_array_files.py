"""Archives of arrays that anybody may have written."""

from __future__ import annotations

import zipfile

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

"""Archives of arrays that anybody may have written, and arrays larger than memory."""

import io
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from elastic_tf import files
from elastic_tf.files import array, container_memory, quarter_of_memory, read_arrays


def archive(header: str, data: bytes = b"") -> bytes:
    """Of one array, with a header of one's own."""
    head = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    with zipfile.ZipFile(file := io.BytesIO(), "w") as made:
        made.writestr("x.npy", head + data)
    return file.getvalue()


SHAPE = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n"


@pytest.mark.parametrize(
    "content",
    [
        archive(SHAPE % ("<f8", "(100000000000000,)")),  # claims 800 TB
        archive(SHAPE % ("<f8", "(3,)"), bytes(8)),
        archive(SHAPE % ("|O", "(1,)"), b"cos\nsystem\n"),
        archive("__import__('os').getcwd()"),
        b"",
        b"PK\x03\x04" + bytes(100),
        b"no archive",
    ],
)
def test_what_is_no_archive_of_arrays_is_refused(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(ValueError, match="is no archive of arrays: "):
        read_arrays(tmp_path / "x.npz")


def test_one_array_without_a_name_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(ValueError, match="one array without a name"):
        read_arrays(tmp_path / "x.npy")


def test_arrays_come_back_by_name(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.arange(6.0).reshape(2, 3), b=np.array(True))
    found = read_arrays(tmp_path / "x.npz")
    np.testing.assert_array_equal(found["a"], np.arange(6.0).reshape(2, 3))
    assert found["b"].dtype == bool
    assert [*read_arrays(tmp_path / "x.npz", ["b", "c"])] == ["b"]


def test_an_array_is_in_memory_where_there_is_room(monkeypatch):
    made = array((2, 3), np.float32, memory=24)
    assert (type(made), made.shape, made.dtype) == (np.ndarray, (2, 3), np.float32)

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(np, "empty", full)
    made = array((2, 3), np.float32, memory=24)
    assert (type(made), made.shape) == (np.memmap, (2, 3))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads what Linux has mapped")
def test_a_larger_array_is_in_a_file_that_goes_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def is_mapped() -> bool:
        return str(tmp_path) in Path("/proc/self/maps").read_text()

    made = array((2, 3), np.float32, memory=23)
    assert is_mapped()
    made[:] = 7.0
    np.testing.assert_array_equal(made, np.full((2, 3), 7.0))
    assert not [*tmp_path.iterdir()]
    del made
    assert not is_mapped()


@pytest.mark.parametrize(
    ("own", "written", "limit"),
    [
        ("0::/a/b", {"a/memory.max": "4096", "a/b/memory.max": "max"}, 4096),
        ("0::/gone", {"memory.max": "8192"}, 8192),
        ("1:cpu:/\n4:memory:/a", {"memory/a/memory.limit_in_bytes": "2048"}, 2048),
        ("1:cpu:/", {"memory/memory.limit_in_bytes": "2048"}, 1 << 63),
        ("no such form", {}, 1 << 63),
    ],
)
def test_memory_of_a_container_is_its_smallest_limit(own, written, limit, tmp_path, monkeypatch):
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own + "\n")
    monkeypatch.setattr(files, "_CGROUPS", tmp_path)
    monkeypatch.setattr(files, "_OWN_CGROUPS", tmp_path / "own")
    assert container_memory() == limit
    assert quarter_of_memory() <= limit // 4

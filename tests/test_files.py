"""Files: whole or not at all, of one writer, and refused with the reason where they are damaged."""

import io
import os
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from elastic_tf import files
from elastic_tf.app.runs import COLUMNS
from elastic_tf.files import claim, from_ranges, read_arrays, read_bytes, to_ranges, write_text


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
        files.directory(tmp_path / name)
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
        files.write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert os.listdir(tmp_path) == []


# without TensorFlow, which takes seconds to load
OTHER = """
import sys
sys.argv = ["-m"]
from elastic_tf.files import claim
held = claim({path!r}, rule="", what="it")
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_claim_is_told_from_whom_and_ends_with_its_process(tmp_path):
    lock = tmp_path / "lock"
    child = subprocess.Popen(
        [sys.executable, "-c", OTHER.format(path=str(lock))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    match = rf"one writer\. Received: '{tmp_path}', which process {child.pid} on '.+' since 2"
    for _ in range(2):  # asking leaves the name
        with pytest.raises(ValueError, match=match):
            claim(lock, rule="There is one writer.", what=tmp_path)
    child.kill()  # kill -9
    child.communicate()
    with claim(lock, rule="There is one writer.", what=tmp_path):
        assert f"process {os.getpid()} on" in lock.read_text()


def test_a_process_has_one_claim_unless_it_shares(tmp_path):
    lock = tmp_path / "lock"
    with claim(lock, rule="There is one writer.", what="it"):
        with pytest.raises(ValueError, match=f"Received: 'it', which process {os.getpid()} on"):
            claim(lock, rule="There is one writer.", what="it")
    first = claim(lock, rule="There is one writer.", what="it", shared=True)
    with claim(lock, rule="There is one writer.", what="it", shared=True):
        first.close()
        first.close()
        with pytest.raises(ValueError, match="Received: 'it'"):
            claim(lock, rule="There is one writer.", what="it")
    for _ in range(2):
        claim(lock, rule="There is one writer.", what="it")  # nobody refers to it: it is given back


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "valuable").write_text("data")
    (tmp_path / "lock").symlink_to("valuable")
    with pytest.raises(OSError, match="lock"):
        claim(tmp_path / "lock", rule="There is one writer.", what="it")
    assert (tmp_path / "valuable").read_text() == "data"


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
        files.parse_json(text)


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
        files.read_json(path)


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
    made = files.array((2, 3), np.float32, memory=24)
    assert (type(made), made.shape, made.dtype) == (np.ndarray, (2, 3), np.float32)

    def full(*_):
        raise MemoryError

    monkeypatch.setattr(np, "empty", full)
    made = files.array((2, 3), np.float32, memory=24)
    assert (type(made), made.shape) == (np.memmap, (2, 3))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads what Linux has mapped")
def test_a_larger_array_is_in_a_file_that_goes_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def is_mapped() -> bool:
        return str(tmp_path) in Path("/proc/self/maps").read_text()

    made = files.array((2, 3), np.float32, memory=23)
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
    assert files.container_memory() == limit
    assert files.quarter_of_memory() <= limit // 4


def test_table_aligns_numbers_and_shows_what_is_missing():
    rows = [
        {"method": "full", "accuracy": 0.8512, "training_seconds": 60.04},
        {"method": "elastic 0.5", "accuracy": np.float32(0.5), "seconds_per_step": 0.01234},
    ]
    assert files.format_table(rows, COLUMNS).splitlines() == [
        "method       accuracy  training s  s per step",
        "-" * 45,
        "full            85.1%        60.0           -",
        "elastic 0.5     50.0%           -      0.0123",
    ]
    assert files.format_table([{"a": 1}], ["a"]) == "a\n-\n1"
    assert files.format_table([], ["a", "b"]) == "a  b\n----"

"""Files that claim or hold too much, or say two things, are refused with the reason."""

from __future__ import annotations

import io
import json
import os
import time
import zipfile

import numpy as np
import pytest

from elastic_tf.files import array_archive, ranges, strict_json
from elastic_tf.runs import run as runs
from elastic_tf.timing.profile import TimingProfile


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": NaN}', "NaN, which is no JSON number"),
        ('{"a": -Infinity}', "-Infinity, which is no JSON number"),
        ('{"a": 1e999}', "1e999', which is no finite number"),
        ('{"a": ' + "9" * 41 + "}", "an integer of 41 digits, more than 40"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' twice"),
        ("[" * 51 + "]" * 51, "nested 51 deep, more than 50"),
        ("[" * 100_000, "nested 100000 deep"),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
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


def test_brackets_in_texts_are_no_nesting():
    value = {"a": "[" * 1000, "b": '"' + "{" * 1000 + "\\", "c": ["ä\U0001f600"]}
    assert strict_json.parse(json.dumps(value).encode()) == value


@pytest.mark.parametrize("text", ['"' + "\\" * 500_001, '"\\' * 250_000, '["' * 250_000])
def test_texts_without_an_end_take_no_longer_than_others(text):
    started = time.process_time()
    with pytest.raises(ValueError, match="is n"):
        strict_json.parse(text.encode())
    assert time.process_time() - started < 10  # going back over it would take hours


def test_a_file_above_the_limit_is_not_read(tmp_path):
    path = tmp_path / "profile.json"
    with open(path, "wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(ValueError, match=r"profile.json', which is larger than 4 MiB"):
        TimingProfile.load(path)
    runs.create(tmp_path / "run", {"seed": 1}).append_epoch({"loss": 1.0})
    with open(tmp_path / "run" / "history.jsonl", "ab") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"history.jsonl' is damaged: it is larger than 256 MiB"):
        runs.load(tmp_path / "run")


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "loop"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, kind):
    path = tmp_path / "profile.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "profile.json")
    with pytest.raises((ValueError, OSError), match="no regular file|is a folder|Too many levels"):
        TimingProfile.load(path)


def test_a_run_above_the_limit_of_a_file_is_not_written(tmp_path):
    large = {"note": "x" * strict_json.MOST_BYTES}
    with pytest.raises(ValueError, match="at most 4194304 bytes.*config.json"):
        runs.create(tmp_path / "run", large)
    run = runs.create(tmp_path / "run", {"seed": 1})
    with pytest.raises(ValueError, match="at most 4194304 bytes.*result.json"):
        run.finish(large)
    assert run.result is None and runs.load(tmp_path / "run").result is None
    run.finish({"note": "short"})
    assert runs.load(tmp_path / "run").result == {"note": "short"}


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ([[0, 4]], 4),
        ([[2, 1]], 4),
        ([[0, 2], [1, 3]], 4),
        ([[0]], 4),
        ([["0", 1]], 4),
        ([], 10**12),
    ],
)
def test_ranges_that_are_no_mask_are_refused(given, count):
    with pytest.raises(ValueError, match="`ranges` must be|`count` must be"):
        ranges.from_ranges(given, count)


def packed(name: str, data: bytes, kind: int = zipfile.ZIP_STORED) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr(name, data)
    return file


def array(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


SHAPE = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }\n"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (packed("x.npy", array(SHAPE % ("<f8", "(1000000000000,)"))), "0 bytes, and should be"),
        (packed("x.npy", array(SHAPE % ("|O", "(1,)"), b"cos\nsystem\n")), "should be object"),
        (packed("x.npy", array("__import__('os').getcwd()")), "no array of numbers"),
        (packed("x.npy", bytes(10**6), zipfile.ZIP_DEFLATED), "it is packed"),
        (packed("../x", b""), "'../x' is no array"),
        (io.BytesIO(b"PK"), "no archive of arrays"),
    ],
)
def test_arrays_that_claim_too_much_are_refused(file, reason):
    with pytest.raises(ValueError, match=reason):
        array_archive.read(file)


def test_a_shortage_of_memory_is_no_damage(monkeypatch):
    def full(*_):
        raise MemoryError

    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    monkeypatch.setattr(array_archive.np, "empty", full)
    with pytest.raises(MemoryError):
        array_archive.read(file)


def test_arrays_come_back_as_numpy_wrote_them():
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "c": np.array(True),
        "d": np.zeros((0, 3), np.float16),
    }
    file = io.BytesIO()
    np.savez(file, **arrays)
    found = array_archive.read(file)
    assert found.keys() == arrays.keys()
    for name, one in arrays.items():
        np.testing.assert_array_equal(found[name], one)
        assert found[name].dtype == one.dtype

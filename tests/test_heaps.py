from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from elastic_tf import heaps

HOLES = 200_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(heaps._malloc_trim() is None, reason="not the GNU C library")
def test_what_was_freed_between_what_is_in_use_is_given_back():
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    small = [library.malloc(1000) for _ in range(HOLES)]
    for place in small:
        ctypes.memset(place, 1, 1000)
    for k, place in enumerate(small):
        if k % 100:  # one in a hundred stays, so that no heap ends with a hole
            library.free(place)
    before = resident_bytes()
    assert heaps.trim()
    assert before - resident_bytes() > 0.5 * 1000 * HOLES
    for place in small[::100]:
        library.free(place)


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_other_c_libraries_are_left_alone(error, monkeypatch):
    def absent(name):
        raise error("no such function")

    heaps._malloc_trim.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", absent)
    try:
        assert not heaps.trim()
    finally:
        heaps._malloc_trim.cache_clear()

"""Arrays that may be larger than memory, and archives of arrays (.npz), whoever wrote them."""

from __future__ import annotations

import contextlib
import math
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

# What NumPy and zipfile raise where bytes are none of theirs. RuntimeError: encrypted or packed in
# an unknown way; MemoryError: a header claims more than there can be.
_DAMAGE = (
    *(ValueError, KeyError, TypeError, EOFError, SyntaxError, OverflowError, RuntimeError),
    *(MemoryError, zipfile.BadZipFile, struct.error, zlib.error),
)
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def container_memory() -> int:
    """Bytes that the control groups (container) of this process allow; 2^63 without a limit."""
    allowed = [1 << 63]
    with contextlib.suppress(OSError, ValueError):  # another system
        for line in _OWN_CGROUPS.read_text("utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds in ("", "memory"):  # of version 2, of version 1
                top = _CGROUPS / kinds
                name = "memory.limit_in_bytes" if kinds else "memory.max"
                group = top / path.lstrip("/")
                for folder in (group, *group.parents):
                    with contextlib.suppress(OSError, ValueError):  # not there, or "max"
                        allowed.append(int((folder / name).read_text("utf-8")))
    return min(allowed)


def quarter_of_memory() -> int:
    """Bytes: of the memory of this machine or container, or 1 GiB where it is unknown (Windows)."""
    if not hasattr(os, "sysconf"):
        return 1 << 30
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(whole, container_memory()) // 4


def array(shape: tuple[int, ...], dtype: Any, *, memory: int) -> np.ndarray:
    """An array without values: in memory up to so many bytes, beyond them in a temporary file.

    In a file, too, where the system has no room in memory. The file has no name: it goes with the
    array, and when the process ends.
    """
    if math.prod(shape) * np.dtype(dtype).itemsize <= memory:
        with contextlib.suppress(MemoryError):
            return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:  # the array holds it open by itself
        return np.memmap(file, dtype, "w+", shape=shape)


def read(path: str | Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """All arrays in an archive, or those of `names`, checksums checked and nothing unpickled.

    Raises:
        ValueError: it is no archive of arrays, or damaged. The text ends the sentence that begins
            with the path.
    """
    try:
        # Opened here, because NumPy leaves a file open that turns out to be none of its own.
        with open(path, "rb") as opened:
            file = np.load(opened, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array without a name")
            return {name: file[name] for name in file if names is None or name in names}
    except _DAMAGE as error:
        raise ValueError(f"is no archive of arrays: {error or type(error).__name__}") from error

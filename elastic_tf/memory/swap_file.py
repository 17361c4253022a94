"""A file that holds arrays while nobody needs them, written and read by a thread of its own."""

from __future__ import annotations

import itertools
import math
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

_ALIGNMENT = 64  # bytes; TensorFlow copies an array that begins elsewhere


class SwapFile:
    """Arrays are put in, asked for ahead of time, and taken out once.

    The file has no name: it is gone when it is closed, and when the process ends in whatever way.
    It is read and written, not mapped into memory: on a full disk a write fails, while a mapped
    page would kill the process. An array that cannot be written stays in memory. So does all that
    is put in after `close`.

    Args:
        folder: where the file is made. None: where Python makes temporary files.

    Attributes:
        nbytes: of the file so far.
        failure: why an array could not be written, if so.

    Raises:
        OSError: there is no such folder, or no file can be made in it.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.nbytes = 0
        self.failure: OSError | None = None
        self.folder = tempfile.gettempdir() if folder is None else folder
        self._file: Any = tempfile.TemporaryFile(dir=self.folder, buffering=0)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="swap")
        self._tickets = itertools.count()
        self._last: Future[None] | None = None  # the write that was begun last
        self._read_ahead: dict[int, Future[np.ndarray]] = {}
        # of the thread alone
        self._places: dict[int, tuple[int, tuple[int, ...], Any]] = {}  # offset, shape, dtype
        self._free: dict[int, list[int]] = {}  # bytes -> offsets of that size
        self._unwritten: dict[int, np.ndarray] = {}

    def put(self, array: np.ndarray) -> np.int64:
        """Begin to write an array when the one before it is written; returns its ticket."""
        ticket = next(self._tickets)
        before, self._last = self._last, self._thread.submit(self._write, ticket, array)
        if before is not None:
            before.result()
        return np.int64(ticket)

    def ask(self, ticket: np.int64) -> np.int64:
        """Begin to read an array; returns its ticket."""
        self._read_ahead[int(ticket)] = self._thread.submit(self._read, int(ticket))
        return ticket

    def take(self, ticket: np.int64) -> np.ndarray:
        """An array that was asked for.

        Raises:
            OSError: it cannot be read.
        """
        return self._read_ahead.pop(int(ticket)).result()

    def close(self) -> None:
        """Give the file back once what was begun is done."""
        self._thread.submit(self._file.close).result()

    def _write(self, ticket: int, array: np.ndarray) -> None:
        try:
            places = self._free.get(array.nbytes)
            offset = places.pop() if places else self.nbytes
            self.nbytes = max(self.nbytes, offset + array.nbytes)
            self._file.seek(offset)
            rest = array.reshape(-1).view(np.uint8).data
            while rest:
                rest = rest[self._file.write(rest) :]
            self._places[ticket] = offset, array.shape, array.dtype
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            # a copy: TensorFlow may overwrite what it gets back, and arrays may share their memory
            self._unwritten[ticket] = array.copy()
            if isinstance(error, OSError):
                self.failure = error

    def _read(self, ticket: int) -> np.ndarray:
        if ticket in self._unwritten:
            return self._unwritten.pop(ticket)
        offset, shape, dtype = self._places.pop(ticket)
        size = math.prod(shape) * dtype.itemsize
        memory = np.empty(size + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        found = memory[start : start + size]
        self._file.seek(offset)
        rest = found.data
        while rest:
            count = self._file.readinto(rest)
            if not count:
                raise OSError(f"The swap file in '{self.folder}' ends too early.")
            rest = rest[count:]
        self._free.setdefault(size, []).append(offset)
        return found.view(dtype).reshape(shape)

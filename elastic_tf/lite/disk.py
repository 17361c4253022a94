"""What the runner keeps on the disk: the exported model, states of a training, rows of samples."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = 3  # of an exported folder
_DAMAGED = (OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile)


@contextlib.contextmanager
def _reading(path: Path, rule: str, way: str) -> Iterator[None]:
    """Say what is wrong with a damaged file, and what to do."""
    try:
        yield
    except _DAMAGED as error:
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
        text = f"{rule}. Received: '{path}': {error}. Copy it again, or {way}."
        raise kind(text) from error


def read_model(folder: Path) -> dict[str, Any]:
    """What `model.json` says, and its checksum, once the files are known to be whole.

    A damaged file could crash the interpreter. A checksum finds damage, not an attacker's work.
    """
    path = folder / "model.json"
    with _reading(path, "An exported folder must be whole", "export the model again"):
        content = path.read_bytes()
        found = json.loads(content)
        if found["format"] != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        for name, checksum in dict(found["files"]).items():
            if zlib.crc32(path.with_name(f"{name}.tflite").read_bytes()) != checksum:
                raise ValueError(f"{name}.tflite has another checksum")
        return {**found, "checksum": zlib.crc32(content)}


def write_state(path: Path, header: dict[str, Any], arrays: Iterable[np.ndarray]) -> None:
    """Write JSON values and arrays as an `.npz`, which has checksums, whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            np.savez(file, np.frombuffer(json.dumps(header).encode(), np.uint8), *arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(
            f"A state must be written. Received: '{path}': {error.strerror}. The state before it "
            "stays; make room, or name another file as `state`."
        ) from error


def read_state(path: Path, model: int) -> tuple[dict[str, Any], list[np.ndarray]]:
    """What `write_state` was given, for the model with this checksum."""
    rule = "A state must be whole and of this model"
    with _reading(path, rule, "move it away to begin anew"):
        with open(path, "rb") as file, np.load(file) as found:
            header = json.loads(found["arr_0"].tobytes())
            if header["model"] != model:
                raise ValueError("it is a state of another model")
            return header, [found[f"arr_{k}"] for k in range(1, len(found.files))]


class Rows:
    """Samples on the disk, written in order, then read by slice or indices.

    The file has no name and ends with the process. It is read, not mapped: no page of it counts as
    memory of the process.
    """

    def __init__(self, folder: Path | None, shape: Sequence[int], dtype: Any) -> None:
        self.shape, self.dtype = (0, *shape), np.dtype(dtype)
        self._size = int(np.prod(shape)) * self.dtype.itemsize
        self._file = tempfile.TemporaryFile(dir=folder)

    def append(self, rows: np.ndarray) -> None:
        """Write the next ones."""
        self._file.write(np.ascontiguousarray(rows, self.dtype).data)
        self._file.flush()
        self.shape = (len(self) + len(rows), *self.shape[1:])

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # it could be made
            self._file.close()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        index = range(len(self))[index] if isinstance(index, slice) else index
        found = np.empty((len(index), *self.shape[1:]), self.dtype)
        for one, number in zip(found, index):
            self._file.seek(int(number) * self._size)
            self._file.readinto(one.reshape(-1).view(np.uint8).data)
        return found

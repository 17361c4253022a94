"""What the runner keeps on the disk: the exported model, states of a training, rows of samples."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_FORMAT = 2
_FIELDS = {
    **{"model": str, "batch_size": int, "input_shape": list, "classes": int, "optimizer": dict},
    **{"tensors": list, "held": list, "plans": list, "head": dict, "files": dict},
}
_MAGIC = b"elastic_tf state 1\n"
_DIGEST = hashlib.sha256().digest_size


def read_model(folder: str | Path) -> dict[str, Any]:
    """What `model.json` says, and its `sha256`, once the files are known to be whole.

    A damaged file could crash the interpreter. A checksum finds damage, not an attacker's work.
    """
    path = Path(folder) / "model.json"
    try:
        content = path.read_bytes()
        found = json.loads(content)
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise ValueError(f"it is not of format {_FORMAT}")
        for name, kind in _FIELDS.items():
            if type(found.get(name)) is not kind:
                raise ValueError(f"{name} is {found.get(name)!r}")
        for name, digest in found["files"].items():
            with open(path.with_name(f"{name}.tflite"), "rb") as file:
                if _digest(file).hex() != digest:
                    raise ValueError(f"{name}.tflite has another checksum")
        path.with_name("weights.state").stat()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"An exported folder holds model.json and what it names. Received: '{folder}' without "
            f"'{Path(error.filename).name}'. Export the model again."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"An exported folder must be whole. Received: '{path}': {error}. Copy the folder again."
        ) from error
    return {**found, "sha256": hashlib.sha256(content).hexdigest()}


def _digest(file: BinaryIO, count: int | None = None) -> bytes:
    """SHA-256 of the next bytes, or of so many."""
    digest, left = hashlib.sha256(), -1 if count is None else count
    while part := file.read(1 << 20 if left < 0 else min(left, 1 << 20)):
        digest.update(part)
        left -= len(part) if left > 0 else 0
    return digest.digest()


def write_state(path: Path, header: dict[str, Any], arrays: Sequence[np.ndarray]) -> None:
    """Write JSON values and float32 arrays, with a checksum, whole or not at all."""
    part, digest = path.with_name(f".{path.name}.part"), hashlib.sha256()
    head = json.dumps({**header, "shapes": [one.shape for one in arrays]}).encode()
    try:
        with open(part, "wb") as file:
            parts: Iterable[Any] = (_MAGIC, len(head).to_bytes(8, "big"), head)
            for data in (*parts, *(one.data for one in arrays)):
                digest.update(data)
                file.write(data)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise OSError(
            f"A state must be written. Received: '{path}': {error.strerror}. The state before it "
            "stays; make room, or name another file as `state`."
        ) from error


def read_state(path: Path, model: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    """What `write_state` was given, for the model with this checksum."""
    try:
        with open(path, "rb") as file:
            count = os.fstat(file.fileno()).st_size - _DIGEST
            if _digest(file, max(count, 0)) != file.read():
                raise ValueError("it is cut off or changed")
            file.seek(0)
            if file.read(len(_MAGIC)) != _MAGIC:
                raise ValueError("it is no state")
            header = json.loads(file.read(int.from_bytes(file.read(8), "big")))
            if header["model"] != model:
                raise ValueError("it is a state of another model")
            arrays = [
                np.fromfile(file, "f4", int(np.prod(shape))).reshape(shape)
                for shape in header["shapes"]
            ]
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise ValueError(
            f"A state must be whole and of this model. Received: '{path}': {error}. Copy it again, "
            "or move it away to begin anew."
        ) from error
    return header, arrays


class Rows:
    """Samples on the disk, written in order, then read by slice or indices.

    The file has no name and ends with the process. It is read, not mapped: no page of it counts as
    memory of the process.
    """

    def __init__(self, folder: Path, shape: Sequence[int], dtype: Any) -> None:
        self.shape, self.dtype = (0, *shape), np.dtype(dtype)
        self._size = int(np.prod(shape)) * self.dtype.itemsize
        self._file = tempfile.TemporaryFile(dir=folder)

    def append(self, rows: np.ndarray) -> None:
        """Write the next ones."""
        try:
            self._file.write(np.ascontiguousarray(rows, self.dtype).data)
            self._file.flush()
        except OSError as error:
            raise OSError(
                "What is computed once of each sample is kept on the disk. Received: "
                f"{error.strerror} after {len(self)} samples of {self._size} bytes. Make room, or "
                "compute it in every step: cache=False."
            ) from error
        self.shape = (len(self) + len(rows), *self.shape[1:])

    def __del__(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            parts = [self._read(start, max(stop - start, 0))]
        else:
            parts = [self._read(int(one), 1) for one in index]
        return np.frombuffer(b"".join(parts), self.dtype).reshape(-1, *self.shape[1:])

    def _read(self, start: int, count: int) -> bytes:
        self._file.seek(start * self._size)
        return self._file.read(count * self._size)

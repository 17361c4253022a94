"""What the runner has on the disk: the exported model, states, images, and rows of samples."""

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
_MOST_PIXELS = 50_000_000  # of a file: 150 MB while it is read
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


def read_image(path: str | Path, shape: Sequence[int]) -> np.ndarray:
    """The image in a file, squeezed into `shape`, uint8 (height, width, channels).

    Pillow's bilinear filter is that of `tf.image.resize(antialias=True)`. It rounds between the two
    directions and TensorFlow does not: values differ by 1 of 255 at most where both decode alike.
    Of 16 bits the upper 8 are kept, what is transparent keeps its colour, and an orientation beside
    the pixels is not applied.
    """
    from PIL import Image

    try:
        with Image.open(path) as file:
            if file.width * file.height > _MOST_PIXELS:
                raise ValueError(f"{file.width} x {file.height} pixels are more than fit")
            image: Any = file
            if image.mode.startswith("I"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            image = image.convert("L" if shape[2] == 1 else "RGB")
            image = image.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
            return np.asarray(image).reshape(shape)
    except MemoryError:
        raise
    except Exception as error:  # of a damaged file Pillow's readers raise what they like
        raise ValueError(
            f"An image must be a file that Pillow reads. Received: '{path}': {error}. Remove it, "
            "or save it again as JPEG or PNG."
        ) from error


def class_folders(
    folder: str | Path, names: Sequence[str] | None
) -> tuple[list[Path], np.ndarray, list[str]]:
    """Files of a folder of class folders, their labels, and the names of the classes.

    Hidden files and what lies beside the class folders are not looked at. The names are in their
    order, where they are known; else sorted.
    """
    inside = {
        one.name: [path for path in sorted(one.iterdir()) if path.is_file() and path.name[0] != "."]
        for one in sorted(Path(folder).iterdir())
        if one.is_dir() and one.name[0] != "."
    }
    names = list(names or inside)
    if len(inside) < 2 or not all(inside.values()) or not set(inside) <= set(names):
        found = ", ".join(f"{len(files)} of {name}" for name, files in inside.items())
        raise ValueError(
            "The images must lie in a folder for each class, two at least, none of them empty; "
            f"the classes are {', '.join(names) or 'their names'}. Received: '{folder}' with "
            f"images: {found or 'none'}."
        )
    files = [path for name in names for path in inside.get(name, [])]
    return files, np.repeat(np.arange(len(names)), [len(inside.get(n, [])) for n in names]), names


class Rows:
    """Samples on the disk, written in order, then read by slice or indices.

    The file has no name and ends with the process. It is read, not mapped: no page of it counts as
    memory of the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self.shape: tuple[int, ...] = (0,)
        self._file = tempfile.TemporaryFile(dir=folder)

    def append(self, rows: np.ndarray) -> None:
        """Write the next ones, of the shape and dtype of the first."""
        self.dtype, self._size = rows.dtype, rows[0].nbytes
        self._file.write(np.ascontiguousarray(rows).data)
        self._file.flush()
        self.shape = (len(self) + len(rows), *rows.shape[1:])

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

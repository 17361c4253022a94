"""Two files, one of which is always whole: where a training is kept between power cuts.

Each file is a line with the format's version, a number that grows and the sha256 of all the rest,
followed by an .npz archive of arrays; the bytes of the first array are JSON. A backup is written
beside the older of the two, forced to the disk, and only then put in its place. A file that was cut
off or changed is seen by its checksum, and the other one is taken. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from elastic_tf.arguments import brief
from elastic_tf.files import array_archive
from elastic_tf.files.file_lock import Claim, claim

VERSION = 1

_NAMES = ("a", "b")
_JSON = "json"
_BLOCK = 1 << 20  # bytes that are hashed at a time
_HEAD = re.compile(rb"elastic_tf backup +(\d+) +(\d+) ([0-9a-f]{64})\n")
_ANY_VERSION = re.compile(rb"elastic_tf backup +(\d+) ")


class State(NamedTuple):
    """What a backup holds.

    Attributes:
        data: JSON values.
        arrays: by name.
    """

    data: dict[str, Any]
    arrays: dict[str, np.ndarray]


class Slots:
    """The two files of one training.

    Args:
        path: their directory; nothing else should be in it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._claim: Claim | None = None
        self._number = 0  # of the newest good one
        self._next = _NAMES[0]

    def open(self) -> None:
        """Take the directory for this process, until `close`; a kill gives it back.

        Raises:
            ValueError: it cannot be made or written, or another training has it.
        """
        rule = "`backup_dir` must be that of one training."
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # Claimed before anything else is touched: another training may be writing a part.
            self._claim = claim(self.path / "lock", rule=rule, what=self.path)
            part = self.path / f"{self._next}.part"
            part.write_bytes(b"")
            part.unlink()
        except OSError as error:
            self.close()
            raise ValueError(
                f"`backup_dir` must be a directory that can be written. Received: '{self.path}': "
                f"{error}. Choose another one, or change its permissions."
            ) from error

    def close(self) -> None:
        """Give the directory back."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def read(self) -> State | None:
        """The newest backup that is whole; None where there is no file.

        Raises:
            ValueError: there are files, but none can be used.

        Warns:
            UserWarning: one of the two cannot be used; the other one is taken.
        """
        numbers: dict[str, int] = {}
        refused = []
        for name in _NAMES:
            path = self.path / name
            try:
                numbers[name] = _verified(path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                refused.append(f"'{path}' {error}")
        if refused and not numbers:
            raise ValueError(
                "A training goes on from a backup that is whole. Received: "
                f"{'; '.join(refused)}. Remove '{self.path}' to start anew."
            )
        for problem in refused:
            warnings.warn(f"The other backup is taken: {problem}.", stacklevel=2)
        if not numbers:
            return None
        newest = max(numbers, key=lambda name: numbers[name])
        self._number, self._next = numbers[newest], _NAMES[1 - _NAMES.index(newest)]
        return _loaded(self.path / newest)

    def write(self, data: dict[str, Any], arrays: Iterable[tuple[str, np.ndarray]]) -> None:
        """Put a backup in the place of the older one, whole or not at all.

        Args:
            data: JSON values; NaN and infinity are allowed.
            arrays: names and arrays of numbers; asked for one at a time, so that only one of them
                is in memory.

        Raises:
            OSError: it could not be written; both files are as they were.
        """
        number, name = self._number + 1, self._next
        part = self.path / f"{name}.part"  # what a kill leaves of it is overwritten
        try:
            with open(part, "w+b") as file:
                file.write(_head(number, "0" * 64))
                text = np.frombuffer(json.dumps(data).encode(), np.uint8)
                with zipfile.ZipFile(file, "w") as archive:
                    for key, array in itertools.chain([(_JSON, text)], arrays):
                        _add(archive, key, array)
                digest = _digest(file, number)
                file.seek(0)
                file.write(_head(number, digest))
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.path / name)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        _sync_directory(self.path)
        self._number, self._next = number, _NAMES[1 - _NAMES.index(name)]

    def clear(self) -> None:
        """Remove both backups.

        Raises:
            ValueError: another training has the directory.
        """
        if self._claim is None:
            self.open()
            try:
                self.clear()
            finally:
                self.close()
            return
        for name in _NAMES:
            (self.path / name).unlink(missing_ok=True)
        self._number, self._next = 0, _NAMES[0]


def _head(number: int, digest: str) -> bytes:
    return f"elastic_tf backup {VERSION:4d} {number:12d} {digest}\n".encode()


_HEAD_BYTES = len(_head(0, "0" * 64))


def _add(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    write: Any = np.lib.format.write_array  # which has no types
    with archive.open(f"{name}{array_archive.SUFFIX}", "w", force_zip64=True) as member:
        write(member, np.asanyarray(array), allow_pickle=False)


def _digest(file: BinaryIO, number: int) -> str:
    """sha256 of all of a file but its checksum."""
    found = hashlib.sha256(_head(number, ""))
    file.seek(_HEAD_BYTES)
    while block := file.read(_BLOCK):
        found.update(block)
    return found.hexdigest()


def _verified(path: Path) -> int:
    """The number of a backup that is whole; a ValueError ends the sentence that begins with it."""
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
        version = _ANY_VERSION.match(head)
        if version is not None and int(version[1]) != VERSION:
            raise ValueError(f"is of format {int(version[1])}, this version reads {VERSION}")
        match = _HEAD.fullmatch(head)
        if match is None:
            raise ValueError(f"is no backup or cut off ({path.stat().st_size} bytes)")
        number = int(match[2])
        if _head(number, _digest(file, number)) != head:
            raise ValueError("was cut off or changed: its checksum does not match")
        return number


def _loaded(path: Path) -> State:
    """What a backup with the right checksum holds; anybody can make a checksum."""
    try:
        with open(path, "rb") as file:
            file.seek(_HEAD_BYTES)
            arrays = array_archive.read(file)
        data = json.loads(arrays.pop(_JSON).tobytes())
        if not isinstance(data, dict):
            raise ValueError(f"holds {brief(data)} instead of an object")
    except (ValueError, KeyError, RecursionError) as error:
        raise ValueError(
            f"A training goes on from a backup that it wrote. Received: '{path}', which is none: "
            f"{type(error).__name__}: {error}. Remove '{path.parent}' to start anew."
        ) from error
    return State(data, arrays)


def _sync_directory(path: Path) -> None:
    """Force the names in a directory to the disk, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems do not know it
        pass
    finally:
        os.close(handle)

"""Two files, one of which is always whole: where a training is kept between power cuts.

Each is an .npz archive of arrays; the bytes of the array `json` are the rest. A backup takes the
place of the older of the two. A file that was cut off or changed is seen by its checksums, and the
other one is taken. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elastic_tf.arguments import brief
from elastic_tf.files import claim, read_arrays, replaced

VERSION = 3
_NAMES = ("a.npz", "b.npz")
_JSON = "json"


class State(NamedTuple):
    """What a backup holds."""

    data: dict[str, Any]  # JSON values
    arrays: dict[str, np.ndarray]  # by name


class Slots:
    """The two files of one training, in a directory of their own."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._claim = contextlib.ExitStack()  # empty until the directory is taken
        self._number = 0  # of the newest good one

    def open(self) -> None:
        """Take the directory for this process, until `close`; a kill gives it back."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            rule = "A directory of backups is that of one training."
            self._claim = claim(self.path / "lock", rule=rule, what=self.path)
        except OSError as error:
            raise ValueError(
                "`Backup` needs a directory that can be written. Received: "
                f"'{self.path}': {error}. Choose another one, or change its permissions."
            ) from error

    def close(self) -> None:
        """Give the directory back."""
        self._claim.close()

    def read(self) -> State | None:
        """The newest backup that is whole; None where there is no file, a ValueError if none is."""
        found: dict[int, Path] = {}
        refused = []
        for path in (self.path / name for name in _NAMES):
            try:
                found[_json(read_arrays(path, [_JSON]))["number"]] = path
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                refused.append(f"'{path}' {error}")
        for number, path in sorted(found.items(), reverse=True):
            try:
                arrays = read_arrays(path)
                held = _json(arrays)
                if held["names"] != [*arrays]:
                    raise ValueError("lacks some of its arrays")
            except (OSError, ValueError) as error:
                refused.append(f"'{path}' {error}")
                continue
            for problem in refused:
                warnings.warn(f"The other backup is taken: {problem}.", stacklevel=2)
            self._number = number
            return State(held["data"], arrays)
        if refused:
            raise ValueError(
                "A training goes on from a backup that is whole. Received: "
                f"{'; '.join(refused)}. Remove '{self.path}' to start anew."
            )
        return None

    def write(self, data: dict[str, Any], arrays: Iterable[tuple[str, np.ndarray]]) -> None:
        """Put a backup of JSON values and arrays in the place of the older one, or change nothing.

        NaN and infinity are allowed. Only one array at a time is in memory.
        """
        number = self._number + 1
        path = self.path / _NAMES[number % 2]
        part = path.with_suffix(".part")  # what a kill leaves of it is overwritten
        with replaced(path, part) as file, zipfile.ZipFile(file, "w") as archive:
            names = [_add(archive, name, array) for name, array in arrays]
            held = {"version": VERSION, "number": number, "names": names, "data": data}
            _add(archive, _JSON, np.frombuffer(json.dumps(held).encode(), np.uint8))
        self._number = number

    def said(self) -> str:
        """What there is."""
        some = "the last good backup is" if self._number else "there is no backup yet"
        return f"{some} in '{self.path}'"

    def clear(self) -> None:
        """Remove both backups."""
        for name in _NAMES:
            (self.path / name).unlink(missing_ok=True)


def _add(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> str:
    """Add one array, as `numpy.savez` does with all of them at once; returns its name."""
    write: Any = np.lib.format.write_array  # which has no types
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        write(member, np.asanyarray(array), allow_pickle=False)
    return name


def _json(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """What a backup holds beside arrays; a ValueError ends the sentence that begins with it."""
    try:
        found = json.loads(arrays.pop(_JSON).tobytes())
        version = found["version"]
        if version == VERSION and isinstance(found["data"], dict) and type(found["number"]) is int:
            return dict(found)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"is no backup: {type(error).__name__}: {error}") from error
    raise ValueError(f"is of format {brief(version)}, this version reads {VERSION}")

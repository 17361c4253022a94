"""The files of a run directory, read within limits: whoever wrote them, they are data alone.

No file is looked for because another one names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from elastic_tf.files import strict_json
from elastic_tf.files.strict_json import read_bytes
from elastic_tf.files.ranges import from_ranges
from elastic_tf.arguments import brief

_MOST_BYTES = 256 << 20  # of all lines together; an epoch takes less than 1 KB
_MOST_EPOCHS = 10**9


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged.
    """
    try:
        return _object(read_bytes(path))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"A run's directory holds {path.name}. Received: '{path.parent}', which "
            f"{'does not' if path.parent.exists() else 'is not there'}."
        ) from error
    except ValueError as error:
        raise ValueError(f"'{path}' is damaged: it {error}. Choose another directory.") from error


def read_config(path: Path) -> dict[str, Any]:
    """`config.json`, with settings, versions and device as objects.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged.
    """
    config = read_object(path)
    for name in ("settings", "versions", "device"):
        if not isinstance(config.get(name), dict):
            raise ValueError(
                f"'{path}' is damaged: `{name}` must be an object. Received: "
                f"{brief(config.get(name))}. Choose another directory."
            )
    return config


def read_epochs(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file with an epoch in each; a last one that was cut off is passed over.

    Raises:
        ValueError: it is damaged; the line is named.
    """
    lines = _read_lines(path)
    for number, line in enumerate(lines, start=1):
        try:
            check_epoch(line.get("epoch", 0))
        except ValueError as error:
            raise ValueError(f"'{path}' is damaged in line {number}: {error}") from error
    return lines


def read_selections(path: Path) -> list[dict[str, Any]]:
    """The whole lines of `selections.jsonl`, with arrays.

    Raises:
        ValueError: it is damaged; the line is named.
    """
    lines = read_epochs(path)
    for number, line in enumerate(lines, start=1):
        try:
            line.update(arrays(line))
        except ValueError as error:
            raise ValueError(f"'{path}' is damaged in line {number}: {error}") from error
    return lines


def arrays(line: dict[str, Any]) -> dict[str, np.ndarray]:
    """The mask and the importance of a selection as they are used.

    Raises:
        ValueError: they are damaged.
    """
    try:
        mask = from_ranges(line.get("mask", ()), line.get("count", -1))
    except TypeError as error:  # of a file it is the value that is wrong
        raise ValueError(str(error)) from error
    worth = line.get("importance")
    if not isinstance(worth, list) or len(worth) != len(mask):
        raise ValueError(f"`importance` must be a list of {len(mask)}. Received: {brief(worth)}.")
    for value in worth:
        if value is not None and type(value) not in (int, float):
            raise ValueError(f"`importance` must hold numbers. Received: {brief(value)}.")
    return {"mask": mask, "importance": np.array(worth, np.float64)}  # None becomes NaN


def check_epoch(epoch: Any) -> None:
    """Refuse what is no number of an epoch.

    Raises:
        ValueError: it is none.
    """
    if type(epoch) is not int or not 0 <= epoch < _MOST_EPOCHS:
        raise ValueError(f"`epoch` must be an integer of at least 0. Received: {brief(epoch)}.")


def _read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines = read_bytes(path, _MOST_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise ValueError(f"'{path}' is damaged: it {error}. Choose another directory.") from error
    lines.pop()  # empty, or cut off before its line break
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_object(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"'{path}' is damaged in line {number}: it {error}.") from error
    return found


def _object(data: bytes) -> dict[str, Any]:
    if len(data) > strict_json.MOST_BYTES:
        raise ValueError(f"is larger than {strict_json.MOST_BYTES >> 20} MiB")
    value = strict_json.parse(data)
    if not isinstance(value, dict):
        raise ValueError(f"must be a JSON object, and is {brief(value)}")
    return value

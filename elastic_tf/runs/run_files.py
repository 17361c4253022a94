"""The files of a run directory, read within limits: whoever wrote them, they are data alone.

No file is looked for because another one names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from elastic_tf.arguments import brief
from elastic_tf.files.ranges import from_ranges
from elastic_tf.files.strict_json import parse, read_bytes

_MOST_BYTES = 256 << 20  # of all lines together; an epoch takes less than 1 KB


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; a `FileNotFoundError` or a `ValueError` names the file."""
    try:
        with _named(path):
            return _object(read_bytes(path))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"A run's directory holds {path.name}. Received: '{path.parent}', which "
            f"{'does not' if path.parent.exists() else 'is not there'}."
        ) from error


def read_config(path: Path) -> dict[str, Any]:
    """`config.json`, with settings, versions and device as objects."""
    config = read_object(path)
    for name in ("settings", "versions", "device"):
        with _named(path):
            if not isinstance(config.get(name), dict):
                raise ValueError(f"has no object `{name}`, but {brief(config.get(name))}")
    return config


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file with an epoch in each; a last one that was cut off is passed over.

    Masks and importance become arrays. A line that is damaged is named.
    """
    try:
        with _named(path):
            # what is after the last line break is empty, or was cut off
            *lines, _ = read_bytes(path, _MOST_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        with _named(path, f" in line {number}"):
            try:
                data = _object(line)
            except ValueError:
                if number == len(lines):
                    break
                raise
            if type(data.get("epoch", 0)) is not int:
                raise ValueError(f"has the epoch {brief(data['epoch'])}")
            found.append({**data, **arrays(data)} if path.stem == "selections" else data)
    return found


def arrays(line: dict[str, Any]) -> dict[str, np.ndarray]:
    """The mask and the importance of a selection as they are used."""
    worth = line.get("importance")
    try:
        mask = from_ranges(line.get("mask", ()), line.get("count", -1))
        importance = np.array(worth, np.float64)  # None becomes NaN
    except (TypeError, OverflowError) as error:  # of a file it is the value that is wrong
        raise ValueError(str(error)) from error
    if importance.shape != mask.shape:
        raise ValueError(f"`importance` must be a list of {len(mask)}. Received: {brief(worth)}.")
    return {"mask": mask, "importance": importance}


@contextlib.contextmanager
def _named(path: Path, place: str = "") -> Iterator[None]:
    """Names the file in what is wrong with it."""
    try:
        yield
    except ValueError as error:
        why = str(error).rstrip(".")
        said = why if why.startswith("`") else f"it {why}"
        raise ValueError(f"'{path}' is damaged{place}: {said}. Choose another directory.") from error


def _object(data: bytes) -> dict[str, Any]:
    value = parse(data)
    if not isinstance(value, dict):
        raise ValueError(f"must be a JSON object, and is {brief(value)}")
    return value

"""Records as JSON: what a file can hold, and files that anybody may have written.

Files are read within limits, and hold finite numbers alone. A set of tensors stands in them as
[first, last] ranges; both ends belong to it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.files.atomic import as_utf8

_MOST_BYTES = 4 << 20  # of one document; the profile of a model of 1,000 tensors takes 0.4 MB
MOST_TENSORS = 100_000  # a file that claims more is not of a model


def now() -> str:
    """The day and the second, in UTC, as ISO 8601 has them."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def to_json(value: Any) -> Any:
    """`value` of dicts, lists, scalars and text alone, as `json.loads` would return it.

    Arrays become lists, dataclasses dicts, paths text; a number that is not finite becomes None.
    What has no such form is a TypeError.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, os.PathLike)):
        return as_utf8(os.fsdecode(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_json(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {as_utf8(str(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_json(item) for item in value), key=repr)
    if isinstance(value, (np.ndarray, np.generic)):
        return to_json(value.tolist())
    if callable(getattr(value, "numpy", None)):  # a tensor
        return to_json(value.numpy())
    raise TypeError(
        "A file stores a `value` of numbers, text, lists and dicts. Received: "
        f"{arguments.brief(value)} of type {type(value).__name__}. Store a description of it."
    )


def read(path: str | Path) -> Any:
    """The value in a JSON file; errors as of `read_bytes` and `parse`."""
    return parse(read_bytes(path))


def read_bytes(path: str | Path, most: int = _MOST_BYTES) -> bytes:
    """All of a file of at most `most` bytes; a pipe or a device may have no end.

    Raises:
        ValueError: it is larger, or none. The text ends the sentence that begins with the path.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("is no regular file")
    with open(path, "rb") as file:
        data = file.read(min(found.st_size, most) + 1)  # Python makes room for all of it
    if len(data) > most:
        raise ValueError(f"is larger than {most >> 20} MiB")
    return data


def parse(data: bytes) -> Any:
    """The value that `data`, UTF-8, stands for; errors as of `read_bytes`."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_real, parse_float=_real)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"is no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"holds {arguments.brief(text)}, which is no finite number")
    return value


def to_ranges(mask: np.ndarray) -> list[list[int]]:
    """The ranges in which `mask`, bool of shape (N,), is True."""
    edges = np.flatnonzero(np.diff(np.r_[False, mask, False])).reshape(-1, 2)
    return [[first, after - 1] for first, after in edges.tolist()]


def from_ranges(ranges: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """The mask of `count` tensors that is True in `ranges`; a TypeError or ValueError if none."""
    mask = np.zeros(arguments.count("count", count, least=0, most=MOST_TENSORS), bool)
    end = -1
    for pair in arguments.items("ranges", ranges, what="[first, last] pairs"):
        whole = isinstance(pair, (list, tuple)) and [type(k) for k in pair] == [int, int]
        if not whole or not end < pair[0] <= pair[1] < count:
            raise ValueError(
                f"`ranges` must be ascending [first, last] pairs below {count}. Received: "
                f"{arguments.brief(pair)}."
            )
        end = pair[1]
        mask[pair[0] : end + 1] = True
    return mask

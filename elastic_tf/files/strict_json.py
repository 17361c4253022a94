"""JSON files that anybody may have written: read within limits, refused where they say two things.

Python's reader takes NaN, lets the last of two equal keys win, and reads as much as there is.
"""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from elastic_tf.arguments import brief

MOST_BYTES = 4 << 20  # of one document; the profile of a model of 1,000 tensors takes 0.4 MB


def read(path: str | Path, most: int = MOST_BYTES) -> Any:
    """The value in a JSON file of at most `most` bytes; errors as of `read_bytes` and `parse`."""
    return parse(read_bytes(path, most))


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """All of a file of at most `most` bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger, or no file but a folder, a pipe or a device, which may have no
            end. The text ends the sentence that begins with the path.
    """
    at_once = getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer would be waited for
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | at_once)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is no regular file")
        data = b"" if status.st_size > most else file.read(most + 1)  # it may have grown
    if max(status.st_size, len(data)) > most:
        raise ValueError(f"is larger than {most >> 20} MiB")
    return data


def parse(data: bytes) -> Any:
    """The value that `data`, UTF-8, stands for.

    Raises:
        ValueError: it is not JSON, or not JSON alone: NaN, a key that stands there twice, a number
            that no float64 holds; or it is nested too deeply. The text ends the sentence that
            begins with the path.
    """
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_real,
            parse_float=_real,
        )
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"is no JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"holds the key {brief(twice)} twice in one object")
    return made


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"holds {brief(text)}, which is no finite number")
    return value

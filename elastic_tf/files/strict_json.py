"""JSON files that anybody may have written: read within limits, finite numbers alone."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from elastic_tf.arguments import brief

MOST_BYTES = 4 << 20  # of one document; the profile of a model of 1,000 tensors takes 0.4 MB


def read(path: str | Path) -> Any:
    """The value in a JSON file; errors as of `read_bytes` and `parse`."""
    return parse(read_bytes(path))


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
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
        raise ValueError(f"holds {brief(text)}, which is no finite number")
    return value

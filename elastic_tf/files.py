"""Files that appear whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old file or the new one, never a part.

    Raises:
        OSError: the directory cannot be written; what was there is untouched.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: str | Path, data: Any) -> None:
    """Write `data` as JSON, whole or not at all."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def append_line(path: str | Path, text: str) -> None:
    """Append one line; a line break inside `text` is refused."""
    if "\n" in text:
        raise ValueError(f"`text` must be one line. Received: {text!r}.")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def as_utf8(text: str) -> str:
    r"""The text in characters that UTF-8 has: a file name may have others, as \udcff."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


def directory(path: str | Path) -> Path:
    """Make a directory, and those above it, where it is not there; an OSError names it."""
    made = Path(path)
    try:
        made.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(
            f"There must be a directory, or it must be possible to make one. Received: '{made}': "
            f"{error}. Choose another path, or change the permissions."
        ) from error
    return made


@contextlib.contextmanager
def replaced(path: Path, part: Path) -> Iterator[BinaryIO]:
    """A file `part` to write, which takes the place of `path` once it is on the disk.

    A reader sees the old file or the new one; after an error the old one stays. Who may read it is
    what the old file says, and the umask where there is none.
    """
    try:
        with open(part, "wb") as file:
            with contextlib.suppress(OSError):  # there is none, or its file system has no modes
                shutil.copymode(path, part)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    path = Path(path)
    # Not of `tempfile`, whose files nobody else may read.
    part = directory(path.parent) / f".{path.name}.{secrets.token_hex(4)}"
    with replaced(path, part) as file:
        file.write(data)


def write_json(path: str | Path, data: Any) -> None:
    """Write `data` as JSON, whole or not at all; a ValueError if a number is not finite."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def append_line(path: str | Path, line: str) -> None:
    """Append one line; it is on the disk when this returns."""
    path = Path(path)
    directory(path.parent)
    with open(path, "ab") as file:
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def as_utf8(text: str) -> str:
    r"""The text in characters that UTF-8 has: a file name may have others, as \udcff."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")

"""Files that anybody may have written, read whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from elastic_tf.files.strict_json import MOST_BYTES


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """All of a file of at most `most` bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger, or no file but a folder, a pipe or a device, which may have no
            end. The text ends the sentence that begins with the path.
    """
    # A pipe without a writer would be waited for.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        status, data = os.fstat(handle), b""
        if not stat.S_ISREG(status.st_mode):
            is_folder = stat.S_ISDIR(status.st_mode)
            raise ValueError("is a folder" if is_folder else "is no regular file")
        if status.st_size <= most:
            with open(handle, "rb", closefd=False) as file:
                data = file.read(most + 1)  # it may have grown
    finally:
        os.close(handle)
    if max(status.st_size, len(data)) > most:
        raise ValueError(f"is larger than {most >> 20} MiB")
    return data

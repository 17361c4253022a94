"""One writer at a time: who writes a file or a directory claims it, and a second one is refused."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import filelock

from elastic_tf.files.json_form import now

_OWNER_CHARACTERS = 200


def claim(
    lock: str | Path, *, rule: str, what: str | Path, shared: bool = False
) -> contextlib.ExitStack:
    """Claim what the file `lock` stands for, until what is returned is closed or forgotten.

    The file is made where it is not there, and stays. With `shared` this process may have several
    claims of it. `rule` is a sentence on `what` is claimed, for the message of a refusal.

    Raises:
        ValueError: another process has claimed it (or this one, unless `shared`); it is named.
        OSError: the lock file cannot be made or locked.
    """
    path = Path(lock).absolute()
    held = filelock.FileLock(path, timeout=0, thread_local=False, is_singleton=shared)
    try:
        held.acquire()
    except (filelock.Timeout, RuntimeError) as error:  # a second lock of this process is no wait
        owner = ""
        with contextlib.suppress(OSError):
            owner = path.read_text(errors="replace")[:_OWNER_CHARACTERS]
        owner = "".join(filter(str.isprintable, owner)) or "another process"
        raise ValueError(
            f"{rule} Received: '{what}', which {owner} uses now. Wait until it has ended, or "
            "choose another one."
        ) from error
    with contextlib.suppress(OSError):  # a full disk: who has claimed it stays unknown
        path.write_text(f"process {os.getpid()} on {socket.gethostname()!r} since {now()}")
    released = contextlib.ExitStack()
    released.callback(held.release)
    return released

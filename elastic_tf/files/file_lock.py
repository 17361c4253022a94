"""One writer at a time: who writes a file or a directory claims it, and a second one is told.

A claim is a lock of the operating system (flock) on a small file that says whose it is. The system
gives it back when the process ends, by `kill -9` too; a file that is left then is taken over.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
import warnings
import weakref
from datetime import datetime, timezone
from pathlib import Path

_TRIES = 100  # a lock file that goes away whenever it has just been opened
_OWNER_BYTES = 200
_LOOKS, _LOOK_SECONDS = 50, 0.01  # for the owner's name
_TAKEN = (errno.EAGAIN, errno.EACCES)
# What this process has locked, by the path of the lock file.
_locks: weakref.WeakValueDictionary[str, _Lock] = weakref.WeakValueDictionary()


class _Lock:
    """A locked file; unlocked when no claim refers to it any more, and when the program ends."""

    def __init__(self, path: str, handle: int | None) -> None:
        weakref.finalize(self, _unlock, path, handle, os.getpid())


class Claim:
    """The right to write something, until `release` or until nothing refers to it any more."""

    def __init__(self, lock: _Lock) -> None:
        self._lock: _Lock | None = lock

    def release(self) -> None:
        """Give it back; a second time does nothing."""
        self._lock = None

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def claim(lock: str | Path, *, rule: str, what: str | Path, shared: bool = False) -> Claim:
    """Claim what the file `lock` stands for.

    Args:
        lock: the lock file, made where it is not there and removed when the claim is released.
        rule: a sentence for the message of a refusal.
        what: what is claimed, for that message.
        shared: whether this process may have several claims of it.

    Raises:
        ValueError: another process has claimed it (or this one, unless `shared`); it is named.
        OSError: the lock file cannot be made.

    Warns:
        UserWarning: the file system cannot lock, as some network file systems: nothing keeps two
            processes from writing there at once.
    """
    path = str(Path(lock).absolute())
    own = _locks.get(path)
    if own is not None and shared:
        return Claim(own)
    if own is not None:
        raise _refusal(rule, what, f"this process ({os.getpid()})")
    handle = _locked(path, rule, what)
    made = _locks[path] = _Lock(path, handle)
    if handle is not None:
        with contextlib.suppress(OSError):  # a full disk: who has claimed it stays unknown
            os.ftruncate(handle, 0)
            os.write(handle, _signature())
    return Claim(made)


def _locked(path: str, rule: str, what: str | Path) -> int | None:
    """The open lock file, locked; None where that cannot be."""
    for _ in range(_TRIES):
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        handle = os.open(path, flags, 0o666)
        try:
            import fcntl  # Unix only

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (ImportError, OSError) as error:
            is_taken = isinstance(error, OSError) and error.errno in _TAKEN
            owner = _owner(handle) if is_taken else ""
            os.close(handle)
            if is_taken:
                raise _refusal(rule, what, owner) from error
            warnings.warn(
                f"'{path}' cannot be locked ({error}): take care that no other process writes "
                f"'{what}'.",
                stacklevel=4,
            )
            return None
        if _is_at(handle, path):
            return handle
        os.close(handle)  # whoever had it removed it in between
    raise OSError(errno.EBUSY, "it is made and removed all the time", path)


def _is_at(handle: int, path: str) -> bool:
    """Whether the open file is the one at `path`."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _unlock(path: str, handle: int | None, process: int) -> None:
    """Remove the lock file while it is locked, then unlock it; a forked child only closes it."""
    if handle is None:
        return
    try:
        if os.getpid() == process and _is_at(handle, path):
            os.unlink(path)
    except OSError:  # a directory that was made read-only or removed: the file may stay
        pass
    finally:
        os.close(handle)


def _signature() -> bytes:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return f"process {os.getpid()} on {socket.gethostname()!r} since {now}".encode()


def _owner(handle: int) -> str:
    """Who wrote the lock file, as far as it says so; it is written once it is locked."""
    text = ""
    for _ in range(_LOOKS):
        text = os.pread(handle, _OWNER_BYTES, 0).decode(errors="replace")
        if text:
            break
        time.sleep(_LOOK_SECONDS)
    return "".join(letter for letter in text if letter.isprintable()) or "another process"


def _refusal(rule: str, what: str | Path, owner: str) -> ValueError:
    return ValueError(
        f"{rule} Received: '{what}', which {owner} uses now. Wait until it has ended, or choose "
        "another one."
    )

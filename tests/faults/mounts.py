"""Directories that fill up or cannot be written, for this process and its children.

Mounting takes root; what is mounted is seen by nobody else and gone when the process is.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
from pathlib import Path

import tensorflow as tf

ROOM = 160  # KiB of the small disk: two backups and a third one that is written
_NEW_NAMESPACE = 0x20000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_DETACH = 2
_namespaces: set[int] = set()  # processes that have one of their own


class ReadOnly(tf.keras.callbacks.Callback):
    """The directory is mounted read-only over itself in random epochs, and writable in others.

    Args:
        folder: the directory of the backups.
        seed: of the epochs.
    """

    def __init__(self, folder: Path, seed: float) -> None:
        super().__init__()
        self.folder = folder
        self._rng = random.Random(seed)

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self.mend()
        if self._rng.random() < 0.6:
            self.strike()

    def on_train_end(self, logs: object = None) -> None:
        self.mend()

    def begin(self) -> None:
        """Before the process of a training starts."""
        self.folder.mkdir(exist_ok=True)
        if os.getpid() not in _namespaces:  # what is mounted from now on is our own
            _check(_libc().unshare(_NEW_NAMESPACE))
            _mount("none", Path("/"), _RECURSIVE | _PRIVATE)
            _namespaces.add(os.getpid())
        self.mend()  # what was mounted outlives a killed process

    def strike(self) -> None:
        """Make writing fail from now on."""
        _mount(str(self.folder), self.folder, _BIND)
        _mount(str(self.folder), self.folder, _BIND | _REMOUNT | _READ_ONLY)

    def mend(self) -> None:
        """Let writing succeed again; also where nothing had struck."""
        while not _libc().umount2(bytes(self.folder), _DETACH):
            pass  # a directory bound over itself does not tell that it is

    def leave(self) -> None:
        """After the training has ended."""
        self.mend()


class FullDisk(ReadOnly):
    """A small tmpfs, and in random epochs a file that takes all the room there is."""

    def begin(self) -> None:
        if not os.path.ismount(self.folder):
            super().begin()
            _mount("tmpfs", self.folder, 0, kind="tmpfs", data=f"size={ROOM}k")

    def strike(self) -> None:
        with contextlib.suppress(OSError), open(self.folder / "filler", "wb", 0) as file:
            while True:
                file.write(bytes(4096))

    def mend(self) -> None:
        (self.folder / "filler").unlink(missing_ok=True)

    def leave(self) -> None:
        _check(_libc().umount2(bytes(self.folder), _DETACH))


def _mount(source: str, target: Path, flags: int, *, kind: str = "none", data: str = "") -> None:
    words = (source.encode(), bytes(target), kind.encode())
    _check(_libc().mount(*words, ctypes.c_ulong(flags), data.encode()))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(code: int) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

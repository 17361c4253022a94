"""What a user says about backups, checked when the callback is made."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from elastic_tf import arguments
from elastic_tf.arguments import brief

#: What can be done about a loss or a weight that is not finite.
POLICIES = ("restore", "skip", "stop", "ignore")


@dataclasses.dataclass(frozen=True)
class BackupOptions:
    """Where backups go, and how often.

    Attributes:
        directory: None: no backups are made.
        every: steps between two backups in an epoch; None: not by steps.
        seconds: likewise, by the clock.
        nan: what to do when the loss or a weight is not finite, one of `POLICIES`.

    Raises:
        ValueError: a number is out of range, or there is nowhere to write to.
    """

    directory: str | Path | None
    every: Any
    seconds: Any
    nan: str

    def __post_init__(self) -> None:
        if self.directory is not None:
            arguments.path("backup_dir", self.directory)
        if self.every is not None:
            self._check_directory("backup_every", self.every)
            arguments.count("backup_every", self.every)
        if self.seconds is not None:
            self._check_directory("backup_seconds", self.seconds)
            arguments.number("backup_seconds", self.seconds, low=0.0, above=True)
        arguments.choice("nan", self.nan, POLICIES)

    def _check_directory(self, name: str, value: Any) -> None:
        if self.directory is None:
            raise ValueError(
                f"`{name}` needs `backup_dir`, a directory for the backups. Received: "
                f"{name}={brief(value)} and backup_dir=None."
            )

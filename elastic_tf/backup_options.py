"""What a user says about backups, checked when the callback is made."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.strict_json import brief

_INTEGERS = (int, np.integer)
_NUMBERS = (*_INTEGERS, float, np.floating)
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
        self._check("backup_every", self.every, _INTEGERS, "an integer of at least 1")
        self._check("backup_seconds", self.seconds, _NUMBERS, "a number of seconds above 0")
        arguments.choice("nan", self.nan, POLICIES)

    def _check(self, name: str, value: Any, kinds: Any, rule: str) -> None:
        if value is None:
            return
        if self.directory is None:
            raise ValueError(
                f"`{name}` needs `backup_dir`, a directory for the backups. Received: "
                f"{name}={value!r} and backup_dir=None."
            )
        if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
            raise ValueError(f"`{name}` must be {rule}. Received: {brief(value)}.")

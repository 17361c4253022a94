"""Trainings by the command `train`, each in a directory and a process of its own.

Done ones are passed over. A process of its own keeps what is measured apart: memory above all. One
that was interrupted goes on from its last complete epoch.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic_tf import commandline, runs
from elastic_tf.commandline import parse
from elastic_tf.commands.run_settings import Settings, completed

_LOG_LINES = 12  # of a training that failed, in the message

# Trains with these arguments, its output in that file.
Launch = Callable[[Sequence[str], Path], None]


class TrainingFailed(RuntimeError):
    """A training that ended with an error."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
        path: its directory.
        options: of the command `train`, by the names of its settings; None is left out.
    """

    path: Path
    options: Mapping[str, Any]

    @property
    def arguments(self) -> list[str]:
        """The command line."""
        words = []
        for name, value in {**self.options, "out": self.path, "quiet": True}.items():
            if value is None or value is False:
                continue
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:
                words.append(str(value))
        return words


def launched(arguments: Sequence[str], log: Path) -> None:
    """Train in a child process.

    Raises:
        TrainingFailed: it failed; the message ends with what it printed last.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *commandline.command("train", arguments)]
    with open(log, "w", encoding="utf-8") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    if code:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        raise TrainingFailed(
            f"A training failed with exit code {code}: {' '.join(command)}\n" + "\n".join(last)
        )


def run(trial: Trial, launch: Launch = launched, *, place: str = "") -> runs.Run:
    """The run of a trial, trained now unless it was before.

    Args:
        trial: the training.
        launch: trains.
        place: of the training among all, for the line that announces it.

    Raises:
        ValueError: its directory holds a run with other settings.
        TrainingFailed: the training failed.
    """
    settings = completed(parse(Settings, "", trial.arguments))
    if not (trial.path / "result.json").is_file():
        print(f"Training{place}: {trial.path}", flush=True)
        launch(trial.arguments, trial.path.parent / f"{trial.path.name}.log")
    return runs.create(trial.path, settings)


def result_of(run: runs.Run) -> dict[str, Any]:
    """What came out of a run.

    Raises:
        TrainingFailed: it is not finished.
    """
    if run.result is None:
        raise TrainingFailed(f"A training ended without a result. Received: '{run.path}'.")
    return run.result

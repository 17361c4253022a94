"""Trainings by the command `train`, each in a directory and a process of its own.

Done ones are passed over. A process of its own keeps what is measured apart: memory above all. One
that was interrupted goes on from its last complete epoch.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic_tf.commands import commandline
from elastic_tf.commands.commandline import parse
from elastic_tf.commands.training.run_settings import Settings, completed
from elastic_tf.files.atomic import directory
from elastic_tf.runs import run as runs

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

    @property
    def is_done(self) -> bool:
        """Whether it was trained to its end before."""
        return (self.path / "result.json").is_file()


def launched(arguments: Sequence[str], log: Path) -> None:
    """Train in a child process.

    Raises:
        TrainingFailed: it failed; the message ends with what it printed last.
    """
    directory(log.parent)
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
    if not trial.is_done:
        print(f"Training{place}: {trial.path}", flush=True)
        launch(trial.arguments, trial.path.parent / f"{trial.path.name}.log")
    return runs.create(trial.path, settings)


class Part:
    """Trainings that are planned together; each line that announces one tells how many are left.

    Args:
        what: they are for.
        count: of them.
    """

    def __init__(self, what: str, count: int) -> None:
        self._what = what
        self._count = count
        self._begun = 0
        self._seconds: list[float] = []  # of each that was not there before

    def run(self, trial: Trial, launch: Launch = launched) -> runs.Run:
        """The run of the next trial, as the function `run` has it."""
        self._begun += 1
        begun, is_new = time.perf_counter(), not trial.is_done
        place = f" {self._begun} of {self._count} ({self._what}{self._to_go()})"
        found = run(trial, launch, place=place)
        if is_new:
            self._seconds.append(time.perf_counter() - begun)
        return found

    def _to_go(self) -> str:
        """From the mean of those trained so far: methods and epochs make it a rough guess."""
        if not self._seconds:
            return ""
        mean = sum(self._seconds) / len(self._seconds)
        return f", about {mean * (self._count - self._begun + 1) / 60:.0f} min to go"


def result_of(run: runs.Run) -> dict[str, Any]:
    """What came out of a run.

    Raises:
        TrainingFailed: it is not finished.
    """
    if run.result is None:
        raise TrainingFailed(f"A training ended without a result. Received: '{run.path}'.")
    return run.result

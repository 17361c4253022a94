"""Trainings by the command `train`, each in a directory and a process of its own.

A process of its own keeps what is measured apart: memory above all. Done ones are passed over; one
that was interrupted goes on from its last complete epoch.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic_tf.commands import train
from elastic_tf.commands.commandline import command, parse, words_of
from elastic_tf.files.atomic import directory
from elastic_tf.runs import run as runs

_LOG_LINES = 12  # of a training that failed, in the message

# Trains with these arguments, its output in that file.
Launch = Callable[[Sequence[str], Path], None]


class TrainingFailed(RuntimeError):
    """A training that ended with an error."""


def launched(arguments: Sequence[str], log: Path) -> None:
    """Train in a child process.

    Raises:
        TrainingFailed: it failed; the message ends with what it printed last.
    """
    directory(log.parent)
    words = [sys.executable, *command("train", arguments)]
    with open(log, "w", encoding="utf-8") as file:
        code = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT).returncode
    if code:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        raise TrainingFailed(
            f"A training failed with exit code {code}: {' '.join(words)}\n" + "\n".join(last)
        )


def run(path: Path, options: Mapping[str, Any], launch: Launch = launched) -> runs.Run:
    """The finished run in `path` with these options of `train`, trained now unless it was before.

    Raises:
        ValueError: the directory holds a run with other settings.
        TrainingFailed: the training failed, or ended without a result.
    """
    words = words_of({**options, "out": path, "quiet": True})
    if not (path / "result.json").is_file():
        print(f"Training {path}", flush=True)
        launch(words, path.parent / f"{path.name}.log")
    found = runs.create(path, parse(train.Settings, "", words))
    if found.result is None:
        raise TrainingFailed(f"A training ended without a result. Received: '{path}'.")
    return found


def profiled(path: Path, classes: int, options: Mapping[str, Any]) -> Path:
    """The timing profile in `path` for these options, measured now unless it was before."""
    if not path.is_file():
        print(f"Profiling {path}", flush=True)
        names = ("model", "alpha", "input_size", "batch_size", "optimizer", "bn_training")
        chosen = {name: options[name] for name in names if name in options}
        words = words_of({**chosen, "classes": classes, "out": path})
        done = [sys.executable, *command("profile", words)]
        subprocess.run(done, stdout=subprocess.DEVNULL, check=True)
    return path

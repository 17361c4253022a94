"""Try faults on a small elastic training: which were tried how often, and what was lost.

Every training runs in a process of its own, and is started with the same command until it has
ended; then weights, slots, history and selections are compared, bit for bit, with those of a
training that nothing happened to. Steps made again are what a fault costs.

Example: python tests/faults/kills.py --kills 200 --out experiments/results/faults.json
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import interrupted
import numpy as np
import tensorflow as tf
from interrupted import EPOCHS, MOMENTS, STEPS

from elastic_tf import commandline
from elastic_tf.backup import Slots
from elastic_tf.commandline import option
from elastic_tf.files import write_json
from elastic_tf.runs import Column, format_table

SECONDS = 600.0  # a process that hangs is ended after so many
_MOST = {"array": 300, "tracing": 16, "importance": 3, "data": 3}  # calls in a training; else 10
COLUMNS = (
    Column("fault", "fault"),
    Column("tried", "tried"),
    Column("trainings", "trainings"),
    Column("identical", "bit-identical"),
    Column("steps_again", "steps made again, mean", ".2f"),
    Column("most_again", "at most"),
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of the trial."""

    kills: int = option(200, help="kills at random times; other faults are tried half as often")
    seed: int = option(0, help="of the random times")
    out: Path = option(Path("experiments/results/faults.json"), help="where the figures go")


class Log(tf.keras.callbacks.Callback):
    """Writes a byte for each step, at once."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        os.write(self._file, b".")


class SmallDisk(tf.keras.callbacks.Callback):
    """Lets no file grow beyond 2,000 bytes in random epochs."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        size = self._rng.choice([2000, self._limits[1]])
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, self._limits[1]))

    def on_train_end(self, logs: Any = None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


class Trial:
    """One fault, tried again and again on trainings that are started until they end.

    Args:
        expected: the outcome of a training that nothing happened to.
    """

    def __init__(self, name: str, expected: Any) -> None:
        self.name = name
        self.expected = expected
        self.tried, self.trainings, self.identical = 0, 0, 0
        self.again: list[int] = []  # steps, of each training
        self.codes: dict[str, int] = {}

    def run(self, times: int, start: Callable[[Path, Path], int]) -> None:
        """Until the fault struck so often.

        Args:
            times: how often.
            start: starts the command with a directory and a file for the outcome; returns the exit
                code, as `os.waitstatus_to_exitcode` does.
        """
        while self.tried < times:
            with tempfile.TemporaryDirectory() as folder:
                out, log = Path(folder, "outcome.json"), Path(folder, "log")
                while not out.exists():
                    code = start(Path(folder), out)
                    self.codes[str(code)] = self.codes.get(str(code), 0) + 1
                    self.tried += not out.exists()
                    if code == 1:
                        raise RuntimeError(f"{self.name}: the training raised an exception.")
                self.trainings += 1
                self.identical += json.loads(out.read_text()) == self.expected
                self.again.append(log.stat().st_size - EPOCHS * STEPS)
        print(f"{self.name}: {self.tried} times, {self.trainings} trainings", flush=True)

    def row(self) -> dict[str, Any]:
        return {
            "fault": self.name,
            "tried": self.tried,
            "trainings": self.trainings,
            "identical": self.identical,
            "steps_again": sum(self.again) / max(self.tried, 1),
            "most_again": max(self.again, default=0),
            "exit_codes": self.codes,
        }


def main(arguments: list[str] | None = None) -> None:
    """Try everything, print the table, write the figures."""
    settings = commandline.parse(Settings, __doc__ or "", arguments)
    rng = random.Random(settings.seed)
    started = time.perf_counter()
    expected, seconds = whole()
    few = max(settings.kills // 2, 1)

    def killed(number: int) -> Callable[[Path, Path], int]:
        # a resumed training is shorter: some end before they are killed
        return lambda folder, out: child(folder, out, after=(rng.uniform(0.0, seconds), number))

    def killed_within(name: str) -> Callable[[Path, Path], int]:
        most = _MOST.get(name, 10)
        return lambda folder, out: child(folder, out, moment=(name, rng.randint(1, most)))

    faults = [
        ("kill -9 at a random time", settings.kills, killed(signal.SIGKILL)),
        ("SIGTERM at a random time", few // 2, killed(signal.SIGTERM)),
        ("SIGINT at a random time", few // 2, killed(signal.SIGINT)),
        *((f"kill -9 within: {name}", few // 4, killed_within(name)) for name in MOMENTS),
    ]
    rows = [damaged(settings.kills, rng), full_disks(expected, few // 4, rng)]
    for name, times, start in faults:
        rows.append(tried(name, expected, times, start))
        write_json(
            settings.out,
            {
                "command": f"python tests/faults/kills.py --kills {settings.kills}",
                "date": date.today().isoformat(),
                "minutes": round((time.perf_counter() - started) / 60.0, 1),
                "steps_between_backups": 2,
                "steps_of_a_training": EPOCHS * STEPS,
                "data": rows,
            },
        )
    print("\n" + format_table(rows, COLUMNS))


def tried(
    name: str, expected: Any, times: int, start: Callable[[Path, Path], int]
) -> dict[str, Any]:
    """A line of the table, for one fault."""
    trial = Trial(name, expected)
    trial.run(times, start)
    return trial.row()


def whole() -> tuple[Any, float]:
    """The outcome of a training that nothing happens to, and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "outcome.json")
        started = time.perf_counter()
        if child(Path(folder), out) != 0:
            raise RuntimeError("The training failed although nothing happened to it.")
        return json.loads(out.read_text()), time.perf_counter() - started


def full_disks(expected: Any, times: int, rng: random.Random) -> dict[str, Any]:
    """Backups fail in random epochs; the training must not."""
    trial = Trial("full disk", expected)

    def start(folder: Path, out: Path) -> int:
        trial.tried += 1
        seed = rng.random()
        return child(folder, out, callbacks=lambda: [SmallDisk(random.Random(seed))])

    trial.run(times, start)
    return trial.row()


def damaged(times: int, rng: random.Random) -> dict[str, Any]:
    """The newer file is cut off, or some of its bits flip: the older one must be taken."""
    taken = 0
    with tempfile.TemporaryDirectory() as folder:
        slots = Slots(folder)
        for number in range(2):
            slots.write({"number": number}, [("values", np.arange(5000.0))])
        path = Path(folder, "b")
        content = path.read_bytes()
        for _ in range(times):
            wrong = bytearray(content[: rng.choice([len(content), rng.randrange(len(content))])])
            if len(wrong) == len(content):
                for place in rng.sample(range(len(wrong)), rng.randint(1, 3)):
                    wrong[place] ^= 1 << rng.randrange(8)
            path.write_bytes(wrong)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                state = Slots(folder).read()
            taken += state is not None and state.data["number"] == 0
    return {"fault": "newer file cut off or flipped", "tried": times, "identical": taken}


def child(
    folder: Path,
    out: Path,
    *,
    after: tuple[float, int] | None = None,
    moment: tuple[str, int] | None = None,
    callbacks: Callable[[], list[Any]] = list,
) -> int:
    """Train in a process of its own; returns its exit code, negative for a signal.

    Args:
        folder: for backups and log.
        out: where the outcome is written.
        after: seconds after which a signal is sent, and its number.
        moment: one of `MOMENTS` and a count; the process kills itself there.
        callbacks: more of them.
    """
    process = os.fork()  # TensorFlow is imported but has not run anything yet
    if process == 0:
        code = 1
        try:
            _train(folder, out, moment, callbacks())
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except KeyboardInterrupt:  # before the training began, or after its end
            code = 130
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    started = time.perf_counter()
    seconds, number = after or (SECONDS, signal.SIGKILL)
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        passed = time.perf_counter() - started
        if passed > SECONDS:
            os.kill(process, signal.SIGKILL)
            raise RuntimeError(f"A training hung for {SECONDS:.0f} seconds.")
        if passed > seconds:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
            seconds = SECONDS + 1.0
        time.sleep(0.002)


def _train(folder: Path, out: Path, moment: tuple[str, int] | None, callbacks: list[Any]) -> None:
    warnings.simplefilter("ignore")
    tf.config.experimental.enable_op_determinism()
    if moment is not None:
        place, name = MOMENTS[moment[0]]
        made = interrupted.at_call(moment[1], interrupted.kill_process, place, name)
        setattr(place, name, made)
    outcome = interrupted.train(folder / "backup", Log(folder / "log"), *callbacks)
    with open(out.with_suffix(".part"), "w", encoding="utf-8") as file:
        json.dump(outcome, file)
    os.rename(out.with_suffix(".part"), out)


if __name__ == "__main__":
    commandline.run(main)

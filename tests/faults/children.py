"""The small training of `interrupted.py` in processes of its own, and what came out of it.

A process is forked from one that has imported TensorFlow and run nothing of it, so that a start
costs no imports.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import interrupted
import tensorflow as tf
from interrupted import EPOCHS, MOMENTS, STEPS

SECONDS = 600.0  # a process that hangs is ended after so many
_TICK = os.sysconf("SC_CLK_TCK")
_STARTS = 200  # of one training: more of them get nowhere
_POLL = 0.01  # seconds; processor time is not known more finely
Begin = Callable[[Path, Path, random.Random], int]


class Log(tf.keras.callbacks.Callback):
    """Writes a byte for each step that was made, at once."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        os.write(self._file, b".")


class Whole(NamedTuple):
    """A training that nothing happened to.

    Attributes:
        outcome: all that must be the same.
        seconds: of processor time.
        calls: of each of `MOMENTS`.
    """

    outcome: Any
    seconds: float
    calls: dict[str, int]


def whole(**options: Any) -> Whole:
    """Train without any fault; `options` as for `start`."""
    with tempfile.TemporaryDirectory() as folder:
        out, calls = Path(folder, "outcome.json"), Path(folder, "calls")
        before = sum(os.times()[2:4])  # of all children so far
        code = start(Path(folder), out, prepare=lambda: _count(calls), **options)
        if code != 0:
            raise RuntimeError(f"The training ended with {code} although nothing happened to it.")
        noted = calls.read_text().splitlines()
        return Whole(
            json.loads(out.read_text()),
            sum(os.times()[2:4]) - before,
            {name: noted.count(name) for name in MOMENTS},
        )


class Trial:
    """One fault, tried again and again on trainings that are started until they end.

    Args:
        name: of the fault.
        expected: the outcome of a training that nothing happened to.
        begin: starts the command with a directory, a file for the outcome and random numbers;
            returns the exit code as `start` does.
        first: likewise, for the first start of each training, which ends with another fault.
    """

    def __init__(self, name: str, expected: Any, begin: Begin, first: Begin | None = None) -> None:
        self.name = name
        self._expected = expected
        self._begin = begin
        self._first = first
        self._tried = self._trainings = self._identical = 0
        self._again: list[int] = []  # steps, of each training
        self._codes: collections.Counter[str] = collections.Counter()

    def row(self, times: int, *, jobs: int, rng: random.Random) -> dict[str, Any]:
        """A line of the table, once the fault has struck so often.

        Args:
            times: how often.
            jobs: processes that each try a part of it, at the same time.
            rng: of the random times.
        """
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, str(job)) for job in range(min(jobs, times))]
            workers = [
                self._fork(path, times // len(paths) + (k < times % len(paths)), rng.random())
                for k, path in enumerate(paths)
            ]
            failed = [worker for worker in workers if os.waitpid(worker, 0)[1]]
            if failed:
                raise RuntimeError(f"{self.name}: it was not tried to the end.")
            for path in paths:
                tried, trainings, identical, again, codes = json.loads(path.read_text())
                self._tried += tried
                self._trainings += trainings
                self._identical += identical
                self._again += again
                self._codes.update(codes)
        faults = self._tried + (self._trainings if self._first is not None else 0)
        return {
            "fault": self.name,
            "tried": self._tried,
            "outcome": f"{self._identical} of {self._trainings} trainings end bit-identical",
            "lost": f"nothing; {sum(self._again) / faults:.1f} steps made again for each "
            f"fault, at most {max(self._again)} in a training",
            "as_expected": self._identical == self._trainings,
            "trainings": self._trainings,
            "exit_codes": dict(sorted(self._codes.items())),
        }

    def _fork(self, path: Path, times: int, seed: float) -> int:
        """Try a part in a process of its own, which writes what it has counted."""
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            code = 1
            try:
                rng = random.Random(seed)
                while self._tried < times:
                    with tempfile.TemporaryDirectory() as folder:
                        self._train(Path(folder), rng)
                counts = [self._tried, self._trainings, self._identical, self._again, self._codes]
                path.write_text(json.dumps(counts))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        return process

    def _train(self, folder: Path, rng: random.Random) -> None:
        out = folder / "outcome.json"
        if self._first is not None:
            self._first(folder, out, rng)
        for _ in range(_STARTS):
            if out.exists():
                break
            code = self._begin(folder, out, rng)
            self._codes[str(code)] += 1
            self._tried += not out.exists()
            if code == 1:
                raise RuntimeError(f"{self.name}: the training raised an exception.")
        else:
            raise RuntimeError(f"{self.name}: {_STARTS} starts, and the training has not ended.")
        is_identical = json.loads(out.read_text()) == self._expected
        self._trainings += 1
        self._identical += is_identical
        print(f"{self.name}: {self._tried} times so far, {is_identical=}", flush=True)
        self._again.append((folder / "log").stat().st_size - EPOCHS * STEPS)


def start(
    folder: Path,
    out: Path,
    *,
    after: tuple[float, int] | None = None,
    moment: tuple[str, int] | None = None,
    prepare: Callable[[], None] | None = None,
    callbacks: Callable[[], list[Any]] = list,
    options: Callable[[], dict[str, Any]] = dict,
) -> int:
    """Train in a process of its own; returns its exit code, negative for a signal.

    Args:
        folder: for backups and log.
        out: where the outcome is written.
        after: seconds of its processor time after which a signal is sent, and its number.
        moment: one of `MOMENTS` and a count; the process kills itself there.
        prepare: called in the process before anything else.
        callbacks: more of them, made in the process.
        options: for `interrupted.train`, likewise.
    """

    def train() -> None:
        tempfile.tempdir = str(folder)  # a process that is killed tidies nothing up
        if moment is not None:
            place, name = MOMENTS[moment[0]]
            made = interrupted.at_call(moment[1], interrupted.kill_process, place, name)
            setattr(place, name, made)
        if prepare is not None:
            prepare()
        log = Log(folder / "log")
        outcome = interrupted.train(folder / "backup", *callbacks(), first=[log], **options())
        part = out.with_suffix(".part")
        part.write_text(json.dumps(outcome), encoding="utf-8")
        os.rename(part, out)

    return run(train, after=after)


def run(work: Callable[[], None], *, after: tuple[float, int] | None = None) -> int:
    """Call a function in a process of its own, deterministic; returns its exit code.

    Args:
        work: what to call.
        after: seconds of its processor time after which a signal is sent, and its number.
    """
    process = os.fork()  # TensorFlow is imported but has not run anything yet
    if process == 0:
        code = 1
        try:
            warnings.simplefilter("ignore")
            logging.getLogger("tensorflow").setLevel(logging.ERROR)
            tf.config.experimental.enable_op_determinism()
            work()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except KeyboardInterrupt:  # before the training began, or after its end
            code = 130
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return _watched(process, after)


def counted(
    name: str,
    times: int,
    rng: random.Random,
    trial: Callable[[random.Random], str],
    *,
    lost: str = "nothing",
) -> dict[str, Any]:
    """A line of the table, of trials in a process of their own that each say what came out."""
    seeds = [rng.random() for _ in range(times)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found")

        def work() -> None:
            found = []
            for seed in seeds:
                tf.keras.backend.clear_session()
                found.append(trial(random.Random(seed)))
            path.write_text(json.dumps(found))

        code = run(work)
        if code:
            raise RuntimeError(f"{name}: the process ended with {code}.")
        found = json.loads(path.read_text())
    outcomes = {one: found.count(one) for one in sorted(set(found))}
    text = "; ".join(f"{count} times {one}" for one, count in outcomes.items())
    return {
        "fault": name,
        "tried": times,
        "outcome": text,
        "lost": lost,
        "as_expected": not any("not as" in one for one in outcomes),
    }


def _watched(process: int, after: tuple[float, int] | None) -> int:
    """The exit code of a process, once it has ended."""
    started = time.perf_counter()
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.perf_counter() - started > SECONDS:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise RuntimeError(f"A training hung for {SECONDS:.0f} seconds.")
        if after is not None and _processor_seconds(process) >= after[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, after[1])
            after = None
        time.sleep(_POLL)


def _processor_seconds(process: int) -> float:
    """What a process has used: on a busy machine it tells better how far it got than a clock."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has just ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


def _count(path: Path) -> None:
    """Write a line at each call of `MOMENTS`."""
    for moment, (place, name) in MOMENTS.items():
        setattr(place, name, _noting(getattr(place, name), moment, path))


def _noting(original: Callable[..., Any], moment: str, path: Path) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        with open(path, "a", encoding="utf-8") as file:
            file.write(moment + "\n")
        return original(*args, **kwargs)

    return noted

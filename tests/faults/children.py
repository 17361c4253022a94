"""The small training of `interrupted.py` in processes of its own, and what came out of it.

A process is forked from one that has imported TensorFlow and run nothing of it, so that a start
costs no imports.
"""

from __future__ import annotations

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
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import interrupted
import tensorflow as tf
from interrupted import EPOCHS, MOMENTS, STEPS

SECONDS = 600.0  # a process that hangs is ended after so many
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
    """A training that nothing happened to."""

    outcome: Any  # all that must be the same
    seconds: float  # of processor time
    calls: Counter[str]  # of each of `MOMENTS`


def whole() -> Whole:
    """Train without any fault."""
    with tempfile.TemporaryDirectory() as folder:
        out, calls = Path(folder, "outcome.json"), Path(folder, "calls")

        def count() -> None:
            for moment, (place, name) in MOMENTS.items():
                setattr(place, name, _noting(getattr(place, name), moment, calls))

        before = sum(os.times()[2:4])  # of all children so far
        code = start(Path(folder), out, prepare=count)
        if code != 0:
            raise RuntimeError(f"The training ended with {code} although nothing happened to it.")
        seconds = sum(os.times()[2:4]) - before
        return Whole(json.loads(out.read_text()), seconds, Counter(calls.read_text().split()))


def _noting(original: Callable[..., Any], moment: str, path: Path) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        with open(path, "a", encoding="utf-8") as file:
            file.write(moment + "\n")
        return original(*args, **kwargs)

    return noted


def tried(
    name: str,
    expected: Any,
    begin: Begin,
    times: int,
    rng: random.Random,
    *,
    first: Begin | None = None,
) -> dict[str, Any]:
    """A line of the table: one fault, on trainings that are started until they end.

    `begin` starts the command with a directory, a file for the outcome and random numbers, until
    the fault has struck so many `times`; `first` is the first start of each training, which ends
    with another fault.
    """
    struck, again, codes, are_identical = 0, [], Counter[str](), []
    while struck < times:
        with tempfile.TemporaryDirectory() as folder:
            place, out = Path(folder), Path(folder, "outcome.json")
            if first is not None:
                first(place, out, rng)
            for _ in range(_STARTS):
                code = begin(place, out, rng)
                codes[str(code)] += 1
                struck += not out.exists()
                if code == 1:
                    raise RuntimeError(f"{name}: the training raised an exception.")
                if out.exists():
                    break
            else:
                raise RuntimeError(f"{name}: {_STARTS} starts, and the training has not ended.")
            are_identical.append(json.loads(out.read_text()) == expected)
            again.append((place / "log").stat().st_size - EPOCHS * STEPS)
            print(f"{name}: {struck} times so far, {are_identical[-1]=}", flush=True)
    faults = struck + (len(again) if first is not None else 0)
    return {
        "fault": name,
        "tried": struck,
        "outcome": f"{sum(are_identical)} of {len(again)} trainings end bit-identical",
        "lost": f"nothing; {sum(again) / faults:.1f} steps made again for each fault, at most "
        f"{max(again)} in a training",
        "as_expected": all(are_identical),
        "trainings": len(again),
        "exit_codes": dict(sorted(codes.items())),
    }


def start(
    folder: Path,
    out: Path,
    *,
    kill_after: float | None = None,
    moment: tuple[str, int] | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> int:
    """Train in a process of its own; returns its exit code, negative for a signal.

    It is killed after some seconds of its processor time, or kills itself at one of `MOMENTS`.
    """

    def train() -> None:
        tempfile.tempdir = str(folder)  # a process that is killed tidies nothing up
        if moment is not None:
            place, name = MOMENTS[moment[0]]
            made = interrupted.at_call(moment[1], interrupted.kill_process, place, name)
            setattr(place, name, made)
        prepare()
        log = Log(folder / "log")
        outcome = interrupted.train(folder / "backup", first=[log])
        part = out.with_suffix(".part")
        part.write_text(json.dumps(outcome), encoding="utf-8")
        os.rename(part, out)

    return run(train, kill_after)


def run(work: Callable[[], None], kill_after: float | None = None) -> int:
    """Call a function in a process of its own, deterministic; returns its exit code."""
    sys.stdout.flush()
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
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    started = time.perf_counter()
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.perf_counter() - started > SECONDS:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise RuntimeError(f"A training hung for {SECONDS:.0f} seconds.")
        if kill_after is not None and _processor_seconds(process) >= kill_after:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            kill_after = None
        time.sleep(_POLL)


def _processor_seconds(process: int) -> float:
    """What a process has used: on a busy machine it tells better how far it got than a clock."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has just ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

"""Try faults on small elastic trainings: which were tried how often, and what was lost.

A training is killed again and again, and the same command is started until it is
through. Then weights, slots, history and selections are compared, bit for bit, with those of a
training that nothing happened to. Steps made again are what a fault costs. Each training is a
process, forked from one that has imported TensorFlow and run nothing of it.

Example: python tests/faults/run.py --kills 200 --out experiments/results/faults.json
"""

from __future__ import annotations

import dataclasses
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from elastic_tf.app.commands import commandline  # before TensorFlow: it quiets its start-up

# isort: split
import interrupted
import tensorflow as tf
from interrupted import EPOCHS, MOMENTS, STEPS

from elastic_tf.app.commands.commandline import option
from elastic_tf.files import write_json

_SKIPPED = 3  # passes and batches left behind, at most, when a training goes on
SECONDS = 600.0  # a process that hangs is ended after so many
_STARTS = 200  # of one training: more of them get nowhere
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

        def noting(original: Callable[..., Any], moment: str) -> Callable[..., Any]:
            def noted(*args: Any, **kwargs: Any) -> Any:
                with open(calls, "a", encoding="utf-8") as file:
                    file.write(moment + "\n")
                return original(*args, **kwargs)

            return noted

        def count() -> None:
            for moment, (place, name) in MOMENTS.items():
                setattr(place, name, noting(getattr(place, name), moment))

        before = sum(os.times()[2:4])  # of all children so far
        code = start(Path(folder), out, prepare=count)
        assert code == 0, "nothing happened to this training"
        seconds = sum(os.times()[2:4]) - before
        return Whole(json.loads(out.read_text()), seconds, Counter(calls.read_text().split()))


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
            starts = 0
            while not out.exists():
                starts += 1
                code = begin(place, out, rng)
                codes[str(code)] += 1
                struck += not out.exists()
                if code == 1 or starts > _STARTS:
                    raise RuntimeError(f"{name}: an exception, or no end in {_STARTS} starts.")
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


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def start(
    folder: Path,
    out: Path,
    *,
    end_after: float | None = None,
    moment: tuple[str, int] | None = None,
    prepare: Callable[[], None] = lambda: None,
) -> int:
    """Train in a process of its own; returns its exit code, negative for a signal.

    It ends after some seconds of its processor time, or kills itself at one of `MOMENTS`.
    """

    def train() -> None:
        tempfile.tempdir = str(folder)  # a process that is killed tidies nothing up
        if moment is not None:
            place, name = MOMENTS[moment[0]]
            setattr(place, name, interrupted.at_call(moment[1], kill, place, name))
        prepare()
        outcome = interrupted.train(folder / "backup", first=[Log(folder / "log")])
        part = out.with_suffix(".part")
        part.write_text(json.dumps(outcome), encoding="utf-8")
        os.rename(part, out)

    return run(train, end_after)


def run(work: Callable[[], None], end_after: float | None = None) -> int:
    """Call a function in a process of its own, deterministic; returns its exit code."""

    def quiet() -> None:
        if end_after is not None:  # of processor time; Python sees no more of it than of kill -9
            signal.setitimer(signal.ITIMER_PROF, end_after)
        warnings.simplefilter("ignore")
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        tf.config.experimental.enable_op_determinism()
        work()

    # TensorFlow is imported but has not run anything yet
    process = multiprocessing.get_context("fork").Process(target=quiet)
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        raise RuntimeError(f"A training hung for {SECONDS:.0f} seconds.")
    return process.exitcode


def kills(times: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """At random times; within a moment a twentieth as often."""
    usual = whole()

    def begin(folder: Path, out: Path, rng: random.Random) -> int:
        # a resumed training is shorter: some end before they are killed
        return start(folder, out, end_after=rng.uniform(0.0, usual.seconds))

    yield tried("sudden end at a random time", usual.outcome, begin, times, rng)
    for moment in MOMENTS:
        yield _within(moment, usual, max(times // 20, 1), rng)


def _within(moment: str, usual: Whole, times: int, rng: random.Random) -> dict[str, Any]:
    """Kills before the n-th call of a function, n at random."""
    most = usual.calls[moment]

    def begin(folder: Path, out: Path, rng: random.Random) -> int:
        if not most and rng.random() < 0.5:  # or else it would never get further than there
            return start(folder, out)
        return start(folder, out, moment=(moment, rng.randint(1, most or _SKIPPED)))

    def cut(folder: Path, out: Path, rng: random.Random) -> int:
        return start(folder, out, moment=("rename", rng.randint(2, usual.calls["rename"])))

    # what is called only when a training goes on needs one that was cut before
    first = None if most else cut
    return tried(f"kill -9 within: {moment}", usual.outcome, begin, times, rng, first=first)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of the trial."""

    kills: int = option(200, help="kills at random times; within a moment a twentieth of them")
    seed: int = option(0, help="of the random times")
    out: Path = option(Path("experiments/results/faults.json"), help="where the figures go")


def main(arguments: list[str] | None = None) -> None:
    """Try everything, print the table, write the figures; end with 1 where something was lost."""
    settings = commandline.parse(Settings, __doc__ or "", arguments)
    started, rows = time.perf_counter(), list[dict[str, Any]]()
    parts: dict[str, Any] = json.loads(settings.out.read_text()) if settings.out.exists() else {}
    for row in kills(settings.kills, random.Random(settings.seed)):
        rows.append(row)
        parts["kills"] = {
            "command": f"python tests/faults/run.py --kills {settings.kills} "
            f"--seed {settings.seed}",
            "date": date.today().isoformat(),
            "minutes": round((time.perf_counter() - started) / 60.0, 1),
            "data": rows,
        }
        write_json(settings.out, parts)
    print("\n" + markdown(rows))
    raise SystemExit(not all(row["as_expected"] for row in rows))


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of all that was tried, as it stands in the documentation."""
    lines = ["| fault | times tried | outcome | lost |", "|---|---|---|---|"]
    lines += [f"| {r['fault']} | {r['tried']} | {r['outcome']} | {r['lost']} |" for r in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    commandline.run(main)

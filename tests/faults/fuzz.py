"""Give the readers of profiles, runs and backups damaged and hostile files, and count what happens.

Every input is a valid file, changed at random. A reader may refuse it with a ValueError or an
OSError, or read it; what it reads must be whole, and no input may take a second of computing.

Example: python tests/faults/fuzz.py --inputs 100000 --out experiments/results/fuzz.json
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import multiprocessing
import random
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
from faults.mutations import mutated_bytes, mutated_json

from elastic_tf.backup.slots import Slots
from elastic_tf.commands import commandline
from elastic_tf.commands.commandline import option
from elastic_tf.files.atomic import write_json
from elastic_tf.runs import run as runs
from elastic_tf.selection.records import SelectionRecord
from elastic_tf.timing.profile import TensorSpec
from elastic_tf.timing.profile_file import checksum
from elastic_tf.timing.runtime import RuntimeSettings, usable_cores

SLOW = 1.0  # seconds of computing that no input may take, whatever else the machine does
HANG = 60  # seconds after which one is ended
BACKUP_SHARE = 0.1  # of the inputs, beside those of profiles and runs
RUN_FILES = ("config.json", "history.jsonl", "selections.jsonl", "result.json")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of the trial."""

    inputs: int = option(100_000, help="damaged profiles and run files")
    seed: int = option(0, help="of the changes")
    jobs: int = option(usable_cores(), help="processes, each with a seed of its own")
    out: Path = option(Path("experiments/results/fuzz.json"), help="where the figures go")


@dataclasses.dataclass(frozen=True)
class Target:
    """A file to damage, and what reads it.

    Attributes:
        name: of the kind of file.
        path: where it is.
        good: valid contents to start from.
        read: reads it, and raises an AssertionError where what it read is not whole.
        is_json: whether JSON that stays JSON is tried too.
        signed: gives that JSON the checksum of its values, so that the fields are looked at.
    """

    name: str
    path: Path
    good: tuple[bytes, ...]
    read: Callable[[], None]
    is_json: bool = True
    signed: Callable[[bytes], bytes] = bytes


def profiles() -> tuple[et.TimingProfile, ...]:
    """A table, and a profile with everything that one can hold."""
    chain = et.TimingProfile.from_chain(t_dw=[1.0, 2.0, 0.5], t_dy=[3.0, 0.0, 1.0], t_forward=5.0)
    settings = RuntimeSettings(onednn=True, inter_op_threads=2)
    full = dataclasses.replace(
        chain,
        tensors=tuple(TensorSpec(f"layer/{k}", (3, k), "float32") for k in range(3)),
        input_shape=((32, None, 3),),
        batch_size=4,
        optimizer="Adam",
        device={"name": "Board 5", "cores": 4},
        settings=settings,
        calibration=(1.0, 0.9),
        created="2026-01-01T00:00:00",
    )
    return chain, full


def profile_target(folder: Path) -> Target:
    path = folder / "profile.json"
    good = []
    for profile in profiles():
        profile.save(path)
        good.append(path.read_bytes())

    def read() -> None:
        found = et.TimingProfile.load(path)
        whole = np.ones(found.count, bool)
        assert found.t_dw.shape == found.t_dy.shape == whole.shape
        assert np.isclose(found.step_time(whole), found.t_full) and found.t_full > 0
        assert len(repr(found)) < 20_000
        if found.count < 10:
            again = et.TimingProfile.from_chain(
                t_dw=found.t_dw, t_dy=found.t_dy, t_forward=found.t_forward
            )
            assert np.isclose(again.t_full, found.t_full)

    return Target("profile", path, tuple(good), read, signed=signed_profile)


def signed_profile(data: bytes) -> bytes:
    """JSON with its checksum, if it is an object."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(data)
        if isinstance(found, dict):
            return json.dumps({**found, "checksum": checksum(found)}).encode()
    return data


def run_targets(folder: Path) -> list[Target]:
    """One target for each file of a run; the others stay as they are."""
    profile, _ = profiles()
    importance = np.array([0.5, 1.0, -0.25])
    run = runs.create(folder / "run", {"seed": 3, "rho": 0.5, "shape": (4, 8)})
    for epoch in range(2):
        selection = et.select_tensors(importance, profile, 0.9)
        run.append_selection(
            SelectionRecord(
                epoch=epoch,
                rho=0.9,
                selection=selection,
                importance=importance,
                predicted_ratio=0.8,
                seconds_importance=1.0,
                seconds_solve=0.1,
            )
        )
        run.append_epoch({"loss": 1.0 / (epoch + 1), "trained": [[0, 1]], "tensors": 3})
    run.finish({"accuracy": 0.5, "class_names": ["ä", "b"]})

    def read() -> None:
        found = runs.load(run.path)
        assert isinstance(found.config["settings"], dict)
        assert all(isinstance(epoch, dict) for epoch in found.history)
        for item in found.selections:
            assert item["mask"].dtype == bool and item["importance"].dtype == np.float64
            assert item["mask"].shape == item["importance"].shape
        assert found.result is None or isinstance(found.result, dict)

    files = [run.path / name for name in RUN_FILES]
    return [Target(path.name, path, (path.read_bytes(),), read) for path in files]


def backup_target(folder: Path) -> Target:
    slots = Slots(folder / "backup")
    slots.open()
    arrays = {"values/0": np.arange(6.0).reshape(2, 3), "values/1": np.array(3, np.uint8)}
    slots.write({"step": 1, "nan": float("nan")}, arrays.items())
    slots.close()
    path = slots.path / "b.npz"

    def read() -> None:
        state = Slots(slots.path).read()
        assert state is not None and state.data["step"] == 1
        assert state.arrays["values/0"].tolist() == arrays["values/0"].tolist()
        assert state.arrays["values/1"] == 3

    return Target("backup", path, (path.read_bytes(),), read, is_json=False)


def _seconds(target: Target) -> float:
    """Of reading the file once more."""
    started = time.process_time()
    with contextlib.suppress(Exception):
        target.read()
    return time.process_time() - started


class Hang(BaseException):
    """An input took too long to wait for its end."""


@contextlib.contextmanager
def ended_in_time() -> Iterator[None]:
    def end(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(HANG)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tried(inputs: int, seed: int, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Counts for each kind of file, and the inputs that a reader failed on."""
    rng = random.Random(seed)
    targets = [profile_target(folder), *run_targets(folder)]
    counts = {target.name: Counter[str]() for target in targets}
    slow, failures = 0, []
    slowest: dict[str, Any] = {"seconds": 0.0}
    backups = [backup_target(folder)]
    counts["backup"] = Counter()
    half = inputs // 2  # profiles; the rest are run files, and backups come on top
    for number in range(inputs + int(BACKUP_SHARE * inputs)):
        if number < half:
            target = targets[0]
        else:
            target = rng.choice(targets[1:] if number < inputs else backups)
        good = rng.choice(target.good)
        lines = good.splitlines(keepends=True)
        if target.is_json and rng.random() < 0.5:
            if target.path.suffix == ".jsonl":
                place = rng.randrange(len(lines))
                lines[place] = mutated_json(lines[place], rng) + b"\n"
                data = b"".join(lines)
            else:
                data = target.signed(mutated_json(good, rng))
        else:
            data = mutated_bytes(good, rng)
        target.path.write_bytes(data)
        started = time.process_time()
        try:
            with ended_in_time():
                target.read()
            outcome = "read"
        except ValueError:
            outcome = "ValueError"
        except OSError:
            outcome = "OSError"
        except (Exception, Hang) as error:
            outcome = "failed"
            failures.append({"file": target.name, "error": repr(error), "input": repr(data[:2000])})
        seconds = time.process_time() - started
        if seconds > SLOW:  # the interpreter tidies up now and then
            seconds = min(seconds, *(_seconds(target) for _ in range(2)))
        if seconds > slowest["seconds"]:
            shown = repr(data[:300])
            slowest = {"seconds": round(seconds, 4), "file": target.name, "input": shown}
        counts[target.name][outcome] += 1
        slow += seconds > SLOW
        target.path.write_bytes(target.good[0])
    found = {
        "profiles_and_run_files": inputs,
        "backups": int(BACKUP_SHARE * inputs),
        "outcomes": {name: dict(sorted(counter.items())) for name, counter in counts.items()},
        "over_a_second": slow,
        "slowest": slowest,
        "failures": len(failures),
    }
    return found, failures


def _total(counts: list[dict[str, int]]) -> dict[str, int]:
    names = sorted({name for one in counts for name in one})
    return {name: sum(one.get(name, 0) for one in counts) for name in names}


def tried_apart(inputs: int, seed: int) -> tuple[dict[str, Any], list[dict[str, Any]], float]:
    """What `tried` says, in a process of its own, and by how many MiB its memory grew."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the two backups one is damaged
        found, failures = tried(inputs, seed, Path(folder))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return found, failures, round(grown / 1024, 1)


def main(arguments: list[str] | None = None) -> None:
    """Try, write the figures, and end with 1 where a reader failed."""
    settings = commandline.parse(Settings, __doc__ or "", arguments)
    started = time.perf_counter()
    shares = [settings.inputs * k // settings.jobs for k in range(settings.jobs + 1)]
    counts = [stop - start for start, stop in zip(shares[:-1], shares[1:])]
    seeds = range(settings.seed, settings.seed + settings.jobs)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(settings.jobs, context) as pool:
        parts = list(pool.map(tried_apart, counts, seeds))
    found: dict[str, Any] = {
        "profiles_and_run_files": settings.inputs,
        "backups": sum(part["backups"] for part, _, _ in parts),
        "outcomes": {
            name: _total([part["outcomes"][name] for part, _, _ in parts])
            for name in parts[0][0]["outcomes"]
        },
        "over_a_second": sum(part["over_a_second"] for part, _, _ in parts),
        "slowest": max((part["slowest"] for part, _, _ in parts), key=lambda one: one["seconds"]),
        "failures": sum(part["failures"] for part, _, _ in parts),
        "memory_growth_mib": max(grown for _, _, grown in parts),
    }
    failures = [failure for _, some, _ in parts for failure in some]
    write_json(
        settings.out,
        {
            "date": date.today().isoformat(),
            "seeds": list(seeds),
            **found,
            "seconds": round(time.perf_counter() - started),
            "examples_of_failures": failures[:20],
        },
    )
    print(json.dumps(found, indent=1))
    for failure in failures[:20]:
        print(failure)
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    commandline.run(main)

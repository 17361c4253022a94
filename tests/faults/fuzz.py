"""Give the readers of profiles, runs and backups damaged and hostile files, and count what happens.

Every input is a valid file, changed at random. A reader may refuse it with a ValueError or an
OSError, or read it; what it reads must be whole, and no input may take a second of computing.

Example: python tests/faults/fuzz.py --inputs 100000 --out experiments/results/fuzz.json
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
from faults.mutations import mutated_bytes, mutated_json

from elastic_tf.app import runs
from elastic_tf.app.commands import commandline
from elastic_tf.app.commands.commandline import option
from elastic_tf.files import write_json
from elastic_tf.timing.profile import TensorSpec
from elastic_tf.train.saved import Slots

SLOW = 1.0  # seconds of computing that no input may take, whatever else the machine does
BACKUP_SHARE = 0.1  # of the inputs, beside those of profiles and runs
RUN_FILES = ("config.json", "history.jsonl", "result.json")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Of the trial."""

    inputs: int = option(100_000, help="damaged profiles and run files")
    seed: int = option(0, help="of the changes")
    out: Path = option(Path("experiments/results/fuzz.json"), help="where the figures go")


class Target(NamedTuple):
    """A file to damage, and what reads it."""

    name: str  # of the kind of file
    path: Path
    good: tuple[bytes, ...]  # valid contents to start from
    read: Callable[[], None]  # raises an AssertionError where what it read is not whole


def profile_target(folder: Path) -> Target:
    """A table, and a profile with everything that one can hold."""
    path = folder / "profile.json"
    chain = et.TimingProfile.from_chain(t_dw=[1.0, 2.0, 0.5], t_dy=[3.0, 0.0, 1.0], t_forward=5.0)
    full = dataclasses.replace(
        chain,
        tensors=tuple(TensorSpec(f"layer/{k}", (3, k), "float32") for k in range(3)),
        input_shape=((32, None, 3),),
        batch_size=4,
        optimizer="Adam",
        device={"name": "Board 5", "cores": 4},
        calibration=(1.0, 0.9),
        created="2026-01-01T00:00:00",
    )
    good = []
    for profile in (chain, full):
        profile.save(path)
        good.append(path.read_bytes())

    def read() -> None:
        found = et.TimingProfile.load(path)
        whole = np.ones(found.count, bool)
        assert found.t_dw.shape == found.t_dy.shape == whole.shape
        assert np.isclose(found.step_time(whole), found.t_full) and found.t_full > 0
        assert len(repr(found)) < 20_000

    return Target("profile", path, tuple(good), read)


def run_targets(folder: Path) -> list[Target]:
    """One target for each file of a run; the others stay as they are."""
    run = runs.create(folder / "run", {"seed": 3, "rho": 0.5, "shape": (4, 8)})
    for epoch in range(2):
        run.append_epoch({"loss": 1.0 / (epoch + 1), "trained": [[0, 1]], "tensors": 2})
    run.finish({"accuracy": 0.5, "class_names": ["ä", "b"]})

    def read() -> None:
        found = runs.load(run.path)
        assert isinstance(found.config["settings"], dict)
        assert all(isinstance(epoch, dict) for epoch in found.history)
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
        assert all(np.array_equal(state.arrays[name], value) for name, value in arrays.items())

    return Target("backup", path, (path.read_bytes(),), read)


def damaged(target: Target, rng: random.Random) -> bytes:
    """A valid content of the file, changed; of JSON half stays JSON."""
    good = rng.choice(target.good)
    if target.name == "backup" or rng.random() < 0.5:
        return mutated_bytes(good, rng)
    if target.path.suffix == ".json":
        return mutated_json(good, rng)
    lines = good.splitlines(keepends=True)
    place = rng.randrange(len(lines))
    lines[place] = mutated_json(lines[place], rng) + b"\n"
    return b"".join(lines)


def outcome_of(target: Target) -> tuple[str, str, float]:
    """Of reading: what came of it, the error if any, and the seconds of computing."""
    started, outcome, text = time.process_time(), "read", ""
    try:
        target.read()
    except Exception as error:
        kinds = [one for one in (ValueError, OSError) if isinstance(error, one)]
        outcome, text = kinds[0].__name__ if kinds else "failed", repr(error)
    return outcome, text, time.process_time() - started


def tried(inputs: int, seed: int, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Counts for each kind of file, and the inputs that a reader failed on."""
    rng = random.Random(seed)
    profile, runs, backup = profile_target(folder), run_targets(folder), backup_target(folder)
    counts = {target.name: Counter[str]() for target in (profile, *runs, backup)}
    slow, slowest, failures = 0, 0.0, []
    backups = int(BACKUP_SHARE * inputs)
    for number in range(inputs + backups):
        half = number < inputs // 2  # profiles; the rest are run files, and backups come on top
        target = profile if half else rng.choice(runs) if number < inputs else backup
        data = damaged(target, rng)
        target.path.write_bytes(data)
        outcome, error, seconds = outcome_of(target)
        if outcome == "failed":
            failures.append({"file": target.name, "error": error, "input": repr(data[:2000])})
        if seconds > SLOW:  # the interpreter tidies up now and then
            seconds = min(seconds, *(outcome_of(target)[2] for _ in range(2)))
        slowest = max(slowest, seconds)
        slow += seconds > SLOW
        counts[target.name][outcome] += 1
        target.path.write_bytes(target.good[0])
    found = {
        "profiles_and_run_files": inputs,
        "backups": backups,
        "outcomes": {name: dict(sorted(counter.items())) for name, counter in counts.items()},
        "over_a_second": slow,
        "slowest": round(slowest, 4),
        "failures": len(failures),
    }
    return found, failures


def main(arguments: list[str] | None = None) -> None:
    """Try, write the figures, and end with 1 where a reader failed."""
    settings = commandline.parse(Settings, __doc__ or "", arguments)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the two backups one is damaged
        found, failures = tried(settings.inputs, settings.seed, Path(folder))
    told = {"date": date.today().isoformat(), "seed": settings.seed, **found}
    told["seconds"] = round(time.perf_counter() - started)
    write_json(settings.out, {**told, "examples_of_failures": failures[:20]})
    print(json.dumps(found, indent=1), *failures[:20], sep="\n")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    commandline.run(main)

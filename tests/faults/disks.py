"""Disks that fill up or cannot be written, and files that are not as they were written."""

from __future__ import annotations

import random
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from faults.children import Trial, Whole, run, start, whole
from faults.mounts import FullDisk, NoPermission, ReadOnly, Trouble

import elastic_tf as et
from elastic_tf.backup.slots import Slots

KINDS = ("cut off", "bits flipped", "emptied", "of another version")
_TROUBLES: dict[str, type[Trouble]] = {
    "disk full (tmpfs) in random epochs, kill -9": FullDisk,
    "directory read-only in random epochs, kill -9": ReadOnly,
    "permission lost in random epochs, kill -9": NoPermission,
}


def rows(kills: int, jobs: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Try them all: files as often as `kills` says, directories a fortieth as often."""
    yield from files(kills, rng)
    yield refused(max(kills // 10, 1))
    usual = whole(options=_cheap)
    for name, trouble in _TROUBLES.items():
        yield _in(trouble, name, usual).row(max(kills // 40, 1), jobs=jobs, rng=rng)


def files(times: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Backups and profiles that were damaged; nothing is trained."""
    for kind in KINDS:
        yield _newer_backup(kind, times, rng)
    yield _both_backups(times, rng)
    for kind in KINDS:
        yield _profile(kind, times, rng)


def refused(times: int) -> dict[str, Any]:
    """A `fit` begins in a directory that cannot be written."""
    with tempfile.TemporaryDirectory() as folder:
        trouble = ReadOnly(Path(folder, "backup"), 0.0)

        def begin() -> None:
            trouble.begin()
            trouble.strike()
            try:
                Slots(trouble.folder).open()
            except ValueError as error:
                if "`Backup` needs a directory that can be written" in str(error):
                    raise SystemExit(3) from None

        told = sum(run(begin) == 3 for _ in range(times))
    return _row("directory read-only when fit begins", times, f"{told} refused by name", told)


def damaged(content: bytes, kind: str, rng: random.Random, version: tuple[bytes, bytes]) -> bytes:
    """A file with one of `KINDS` of damage."""
    if kind == "cut off":
        return content[: rng.randrange(1, len(content))]
    if kind == "emptied":
        return b""
    if kind == "of another version":
        return content.replace(*version, 1)
    wrong = bytearray(content)
    for place in rng.sample(range(len(wrong)), rng.randint(1, 3)):
        wrong[place] ^= 1 << rng.randrange(8)
    return bytes(wrong)


def _newer_backup(kind: str, times: int, rng: random.Random) -> dict[str, Any]:
    taken = alike = 0
    for folder, content in _backups(times):
        (folder / "a.npz").write_bytes(damaged(content, kind, rng, _version(rng)))
        found = _number(folder)
        taken += found == 0
        alike += found == 1  # what was changed means nothing
    outcome = f"the older one is taken {taken} times, {alike} read unchanged"
    good = taken + alike
    return _row(f"newer backup {kind}", times, outcome, good, lost="steps since the older one")


def _both_backups(times: int, rng: random.Random) -> dict[str, Any]:
    told = alike = 0
    for folder, content in _backups(times):
        for name in ("a.npz", "b.npz"):
            kind = rng.choice(KINDS)
            (folder / name).write_bytes(damaged(content, kind, rng, _version(rng)))
        try:
            alike += _number(folder) in (0, 1)
        except ValueError as error:
            told += "Received" in str(error) and str(folder) in str(error)
    return _row(
        "both backups damaged",
        times,
        f"{told} refused by name, {alike} read unchanged, nothing starts anew by itself",
        told + alike,
        lost="the training, as far as the files are",
    )


def _profile(kind: str, times: int, rng: random.Random) -> dict[str, Any]:
    """No damaged profile may be read as another one."""
    told = alike = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "profile.json")
        draw = np.random.default_rng(rng.randrange(2**32)).uniform(1.0, 9.0, (2, 20))
        et.TimingProfile.from_chain(t_dw=draw[0], t_dy=draw[1], t_forward=50.0).save(path)
        content, profile = path.read_bytes(), et.TimingProfile.load(path)
        for _ in range(times):
            version = (b'"schema_version": 6', b'"schema_version": %d' % rng.randint(7, 99))
            path.write_bytes(damaged(content, kind, rng, version))
            try:
                alike += _times(et.TimingProfile.load(path)) == _times(profile)
            except ValueError as error:
                told += str(path) in str(error)
    outcome = f"{told} refused by name, {alike} read unchanged, {times - told - alike} misread"
    return _row(f"profile {kind}", times, outcome, told + alike)


def _times(profile: et.TimingProfile) -> tuple[Any, ...]:
    return profile.t_forward, profile.items, profile.count


def _in(trouble: type[Trouble], name: str, usual: Whole) -> Trial:
    """Trainings whose directory is in trouble, killed at random times."""

    def begin(folder: Path, out: Path, rng: random.Random) -> int:
        here = trouble(folder / "backup", rng.random())
        here.begin()
        after = (rng.uniform(0.3, 1.2) * usual.seconds, signal.SIGKILL)
        code = start(
            folder, out, after=after, prepare=here.drop, callbacks=lambda: [here], options=_cheap
        )
        if out.exists():
            here.leave()
        return code

    return Trial(name, usual.outcome, begin)


def _cheap() -> dict[str, Any]:
    return {"importance": et.importance.weight_magnitude}


def _backups(times: int) -> Iterator[tuple[Path, bytes]]:
    """A directory with two backups, and the content of the newer one; again and again."""
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(times):
            for name in ("a.npz", "b.npz"):
                Path(folder, name).unlink(missing_ok=True)
            slots = Slots(folder)
            for number in range(2):
                slots.write({"number": number}, [("values", np.arange(500.0))])
            yield Path(folder), Path(folder, "a.npz").read_bytes()


def _number(folder: Path) -> int | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the other one is taken
        state = Slots(folder).read()
    if state is None or state.arrays["values"].tolist() != [*range(500)]:
        return None
    return int(state.data["number"])


def _version(rng: random.Random) -> tuple[bytes, bytes]:
    return b'"version": 2', b'"version": %d' % rng.randint(3, 9)


def _row(
    name: str, times: int, outcome: str, good: int, *, lost: str = "nothing"
) -> dict[str, Any]:
    return {
        "fault": name,
        "tried": times,
        "outcome": outcome,
        "lost": lost,
        "as_expected": good == times,
    }

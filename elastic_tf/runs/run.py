"""The directory of one run: settings, epochs, selections and result, readable at any moment.

`config.json` is written first, a line is added to `history.jsonl` when an epoch ends and to
`selections.jsonl` when a selection is made, `result.json` comes last. A line that a crash cut off
is passed over when the run is read, and removed when it is continued. One process writes at a time;
any number may read.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.files.atomic import append_line, directory, write_json, write_text
from elastic_tf.files.file_lock import Claim, claim
from elastic_tf.files.json_form import now, to_json
from elastic_tf.files.ranges import from_ranges, to_ranges
from elastic_tf.files.table import Column
from elastic_tf.runs import run_files
from elastic_tf.timing.runtime import describe_device

_PACKAGES = ("elastic_tf", "tensorflow", "keras", "tf_keras", "numpy", "keras-cv")
_DIGITS = 6  # significant digits of an importance in a file

#: Of a result, for `format_table`.
COLUMNS = (
    Column("method", "method"),
    Column("accuracy", "accuracy", ".1%"),
    Column("training_seconds", "training s", ".1f"),
    Column("seconds_per_step", "s per step", ".4f"),
    Column("achieved_ratio", "achieved ratio", ".3f"),
)


class Run:
    """A run directory, opened by `create` or `load`.

    Attributes:
        path: the directory.
        config: what `config.json` holds: `settings`, `seed`, `versions`, `device`, `started`.
        history: one dict for each finished epoch.
        selections: one dict for each selection; `mask` bool and `importance` float64, shape (N,).
        result: what `finish` was given; None before.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = run_files.read_config(self.path / "config.json")
        self.history = run_files.read_lines(self.path / "history.jsonl")
        self.selections = run_files.read_lines(self.path / "selections.jsonl")
        result = self.path / "result.json"
        self.result = run_files.read_object(result) if result.exists() else None
        self._claim: Claim | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_claim": None}  # a claim is this process's own

    def append_epoch(self, epoch: Mapping[str, Any]) -> None:
        """Add a finished epoch; its number, from 0, is put in unless it is given."""
        data = to_json({"epoch": len(self.history), **epoch})
        self._append("history.jsonl", data)
        self.history.append(data)

    def append_selection(self, record: Any) -> None:
        """Add a selection: a record of `ElasticCallback.selections`."""
        data = {
            **_scalars(record),
            "selection": _scalars(record.selection),
            "count": len(record.mask),
            "mask": to_ranges(record.mask),
            "importance": to_json(
                [float(f"{value:.{_DIGITS}g}") for value in np.asarray(record.importance)]
            ),
        }
        found = {**data, **run_files.arrays(data)}
        self._append("selections.jsonl", data)
        self.selections.append(found)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result of the run."""
        data = to_json(dict(result))
        self._own()
        write_json(self.path / "result.json", data)
        self.result = data
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _append(self, name: str, data: dict[str, Any]) -> None:
        self._own()
        append_line(self.path / name, json.dumps(data, allow_nan=False))

    def _own(self) -> None:
        """Claim the directory, unless this process has done so; what was cut off is removed.

        Left are the finished epochs and the selections made in them: others are made again.
        """
        if self._claim is None:
            self._claim = _claimed(self.path)
            done = len(self.history)
            self.selections = [item for item in self.selections if item.get("epoch", 0) < done]
            _cut(self.path / "history.jsonl", done)
            _cut(self.path / "selections.jsonl", len(self.selections))


def create(path: str | Path, config: Mapping[str, Any] | Any) -> Run:
    """Start a run, or continue the one in `path` if its settings are the same.

    A run that failed before its first epoch ended is started anew, with other settings too.

    Epochs that were finished are kept; selections made for later epochs are removed, for they will
    be made again.

    Args:
        path: the run's directory.
        config: settings of the run, `seed` among them: a mapping or a dataclass.

    Raises:
        ValueError: `path` holds a run with other settings, named at the first difference, or
            something that is no run, or another process writes it.

    Warns:
        UserWarning: the run was started on another device or with other versions.
    """
    path = Path(arguments.path("path", path))
    settings = to_json(config)
    if not isinstance(settings, dict):
        raise TypeError(
            f"`config` must be a mapping or a dataclass of settings. Received: {brief(config)}."
        )
    foreign = [name for name in ("history.jsonl", "result.json") if (path / name).exists()]
    if foreign and not (path / "config.json").exists():
        raise ValueError(
            f"A run's directory must be new or hold a config.json. Received: '{path}', which holds "
            f"{foreign[0]} alone. Choose another directory."
        )
    here = {"versions": _versions(), "device": to_json(describe_device())}
    directory(path)
    with _claimed(path):
        run = Run(path) if (path / "config.json").exists() else None
        difference = run and _difference(run.config["settings"], settings)
        if run is None or (difference and not run.history and run.result is None):
            started = {"settings": settings, "seed": settings.get("seed"), **here, "started": now()}
            write_json(path / "config.json", started)
            run = Run(path)
        elif difference:
            raise ValueError(
                f"A run is continued with the settings it was started with. Received: '{path}', "
                f"which differs first in {difference}. Choose another directory, or remove this "
                "one."
            )
        elsewhere = _difference({name: run.config[name] for name in here}, here)
        if elsewhere:
            warnings.warn(
                f"The run in '{path}' was started elsewhere, its times may not compare: "
                f"{elsewhere}.",
                stacklevel=2,
            )
        if run.result is None:  # or else nothing will be written
            run._own()
    return run


def load(path: str | Path) -> Run:
    """Read a run, finished or not.

    Raises:
        FileNotFoundError: `path` holds no run.
        ValueError: a file of the run is damaged; it is named.
    """
    return Run(arguments.path("path", path))


def trained_masks(history: Sequence[Mapping[str, Any]]) -> list[np.ndarray]:
    """What was trained at the end of each epoch of `Run.history`; bool, shape (N,)."""
    return [from_ranges(epoch["trained"], epoch["tensors"]) for epoch in history]


def peak_memory_bytes() -> int:
    """Largest resident memory of this process so far."""
    import resource  # Unix only

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)


def _claimed(path: Path) -> Claim:
    rule = "A run is written by one process at a time."
    return claim(path / "run.lock", rule=rule, what=path, shared=True)


def _versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # a checkout that is not installed
            continue
    return versions


def _difference(before: Any, now: Any) -> str:
    """Where two JSON objects differ first; empty where they are equal."""
    held, given = dict(_leaves(before)), dict(_leaves(now))
    for key in [*given, *held]:
        one, other = held.get(key, "nothing"), given.get(key, "nothing")
        if json.dumps(one) != json.dumps(other):
            return f"'{key}': {one!r} in the directory, {other!r} now"
    return ""


def _leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """What is not an object in nested objects, with the keys that lead there."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _leaves(item, f"{where}{key}.")
        else:
            yield f"{where}{key}", item


def _scalars(data: Any) -> dict[str, Any]:
    """The fields of a dataclass that hold one value."""
    values = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    single = (bool, int, float, str, np.generic, type(None))
    return {name: to_json(value) for name, value in values.items() if isinstance(value, single)}


def _cut(path: Path, keep: int) -> None:
    """Cut a file of lines after `keep` of them."""
    if path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        kept = "".join(line + "\n" for line in text.split("\n")[:keep])
        if kept != text:
            write_text(path, kept)

"""The directory of one run: settings, epochs, selections and result, readable at any moment.

`config.json` is written first, a line is added to `history.jsonl` when an epoch ends and to
`selections.jsonl` when a selection is made, `result.json` comes last. A line that a crash cut off
is passed over when the run is read, and removed when it is continued. One process writes at a time;
any number may read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import warnings
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.runs import run_files
from elastic_tf.files.file_lock import Claim, claim
from elastic_tf.timing.device import describe_device
from elastic_tf.files.atomic import append_line, directory, write_json, write_text
from elastic_tf.files.json_form import now, to_json
from elastic_tf.files.table import Column
from elastic_tf.files.ranges import to_ranges
from elastic_tf.files.strict_json import MOST_BYTES
from elastic_tf.arguments import brief

_PACKAGES = (
    "elastic_tf",
    "tensorflow",
    "keras",
    "tf_keras",
    "numpy",
    "keras-cv",
)
_DIGITS = 6  # significant digits of an importance in a file


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
        self.history = run_files.read_epochs(self.path / "history.jsonl")
        self.selections = run_files.read_selections(self.path / "selections.jsonl")
        result = self.path / "result.json"
        self.result = run_files.read_object(result) if result.exists() else None
        self._claim: Claim | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_claim": None}  # a claim is this process's own

    def append_epoch(self, epoch: Mapping[str, Any]) -> None:
        """Add a finished epoch; its number, from 0, is put in unless it is given."""
        if not isinstance(epoch, Mapping):
            raise TypeError(f"`epoch` must be a mapping. Received: {brief(epoch)}.")
        data = to_json({"epoch": len(self.history), **epoch})
        run_files.check_epoch(data["epoch"])
        self._own()
        _append(self.path / "history.jsonl", data)
        self.history.append(data)

    def append_selection(self, record: Any) -> None:
        """Add a selection: a record of `ElasticCallback.selections`."""
        data = _packed(record)
        run_files.check_epoch(data["epoch"])
        arrays = run_files.arrays(data)
        self._own()
        _append(self.path / "selections.jsonl", data)
        self.selections.append({**data, **arrays})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result of the run.

        Raises:
            ValueError: it is larger than what is read again.
        """
        if not isinstance(result, Mapping):
            raise TypeError(f"`result` must be a mapping. Received: {brief(result)}.")
        data = to_json(result)
        self._own()
        write_json(self.path / "result.json", data)
        self.result = data
        self._claim = None

    def _own(self) -> None:
        """Claim the directory, unless this process has done so; what was cut off is removed."""
        if self._claim is None:
            self._claim = _claimed(self.path)
            _repair(self)


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
    settings = _settings(config)
    versions, device = _versions(), to_json(describe_device())
    if not (path / "config.json").exists():
        foreign = [name for name in ("history.jsonl", "result.json") if (path / name).exists()]
        if foreign or (path.exists() and not path.is_dir()):
            raise ValueError(
                f"A run's directory must be new or hold a config.json. Received: '{path}'"
                + (f", which holds {foreign[0]} alone" if foreign else ", a file")
                + ". Choose another directory."
            )
    directory(path)
    with _claimed(path):
        run = _opened(path, settings, versions, device)
        if run.result is None:  # or else nothing will be written
            run._own()
    return run


def _settings(config: Any) -> dict[str, Any]:
    """The settings of a run as JSON values."""
    is_data = dataclasses.is_dataclass(config) and not isinstance(config, type)
    if not is_data and not isinstance(config, Mapping):
        raise TypeError(
            f"`config` must be a mapping or a dataclass of settings. Received: {brief(config)}."
        )
    settings: dict[str, Any] = to_json(config)
    return settings


def _claimed(path: Path) -> Claim:
    rule = "A run is written by one process at a time."
    return claim(path / "run.lock", rule=rule, what=path, shared=True)


def _opened(path: Path, settings: Any, versions: Any, device: Any) -> Run:
    """The run in a directory that is claimed."""
    if not (path / "config.json").exists():
        return _started(path, settings, versions, device)
    run = Run(path)
    difference = _difference(run.config.get("settings"), settings)
    if difference is not None and not run.history and run.result is None:
        _repair(run)
        return _started(path, settings, versions, device)
    if difference is not None:
        raise ValueError(
            f"A run is continued with the settings it was started with. Received: '{path}', which "
            f"differs first in {difference}. Choose another directory, or remove this one."
        )
    elsewhere = _difference(run.config.get("device"), device, "device.") or _difference(
        run.config.get("versions"), versions, "versions."
    )
    if elsewhere is not None:
        warnings.warn(
            f"The run in '{path}' was started elsewhere, its times may not compare: {elsewhere}.",
            stacklevel=2,
        )
    return run


def _started(path: Path, settings: Any, versions: Any, device: Any) -> Run:
    """A run without epochs, begun now."""
    write_json(
        path / "config.json",
        {
            "settings": settings,
            "seed": settings.get("seed"),
            "versions": versions,
            "device": device,
            "started": now(),
        },
    )
    return Run(path)


def load(path: str | Path) -> Run:
    """Read a run, finished or not.

    Raises:
        FileNotFoundError: `path` holds no run.
        ValueError: a file of the run is damaged; it is named.
    """
    return Run(arguments.path("path", path))


def peak_memory_bytes() -> int:
    """Largest resident memory of this process so far."""
    import resource  # Unix only

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)


def _versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # a checkout that is not installed
            continue
    return versions


def _difference(before: Any, now: Any, where: str = "") -> str | None:
    """Where two JSON values differ first."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*now, *(key for key in before if key not in now)]:
            if key not in before or key not in now:
                held, given = before.get(key, "nothing"), now.get(key, "nothing")
                return f"'{where}{key}': {held!r} in the directory, {given!r} now"
            deeper = _difference(before[key], now[key], f"{where}{key}.")
            if deeper is not None:
                return deeper
        return None
    if before == now and isinstance(before, bool) == isinstance(now, bool):
        return None
    return f"'{where.rstrip('.')}': {before!r} in the directory, {now!r} now"


def _packed(record: Any) -> dict[str, Any]:
    """A selection's record as JSON: the mask as [first, last] runs, the importance rounded."""
    is_data: bool = dataclasses.is_dataclass(record)
    if not is_data or not hasattr(record, "importance"):
        raise TypeError(f"`record` must be a SelectionRecord. Received: {brief(record)}.")
    mask = np.asarray(record.mask, bool)
    importance = [float(f"{value:.{_DIGITS}g}") for value in np.asarray(record.importance)]
    return {
        **_scalars(record),
        "selection": _scalars(record.selection),
        "count": len(mask),
        "mask": to_ranges(mask),
        "importance": to_json(importance),
    }


def _scalars(data: Any) -> dict[str, Any]:
    """The fields of a dataclass that hold one value."""
    values = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    single = (bool, int, float, str, np.generic, type(None))
    return {name: to_json(value) for name, value in values.items() if isinstance(value, single)}


def _append(path: Path, data: dict[str, Any]) -> None:
    """Add one line, or leave the file as it was."""
    line = json.dumps(data, allow_nan=False)
    if len(line) > MOST_BYTES:
        raise ValueError(
            f"A line of a run must have at most {MOST_BYTES} bytes, or else it cannot be read "
            f"again. Received: {len(line)} bytes for '{path}'. Put less into it."
        )
    size = path.stat().st_size if path.exists() else None
    try:
        append_line(path, line)
    except BaseException:
        if size is not None:
            os.truncate(path, size)
        else:
            path.unlink(missing_ok=True)
        raise


def _repair(run: Run) -> None:
    """Leave the finished epochs and their selections, nothing else."""
    done = len(run.history)
    _rewrite(run.path / "history.jsonl", done)
    early = [item.get("epoch", 0) < done for item in run.selections]
    keep = early.index(False) if False in early else len(early)
    _rewrite(run.path / "selections.jsonl", keep)
    del run.selections[keep:]


def _rewrite(path: Path, keep: int) -> None:
    """Cut a file of lines after `keep` of them."""
    if path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        kept = "".join(line + "\n" for line in text.split("\n")[:keep])
        if kept != text:
            write_text(path, kept)

"""The directory of one run: settings, epochs and result, readable at any moment.

`config.json` is written first, a line is added to `history.jsonl` when an epoch ends, `result.json`
comes last; each file is there whole or not at all. One process writes at a time; any number may
read. Whoever wrote the files, they are data alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from elastic_tf import arguments
from elastic_tf.files import (
    claim,
    directory,
    from_ranges,
    now,
    parse_json,
    read_bytes,
    to_json,
    write_json,
    write_text,
)
from elastic_tf.plan import Plan
from elastic_tf.timing import describe_device

_PACKAGES = ("elastic_tf", "tensorflow", "keras", "tf_keras", "numpy", "keras-cv")
_MOST_BYTES = 256 << 20  # of all lines together; an epoch takes less than 1 KB

NETWORK = "network.keras"  # in a run's directory: the file that `train --model` named
WEIGHTS = "model.weights.h5"  # likewise: those that were trained
_CHECKSUM = "sha256 of weights"  # in `result.json`
_BLOCK = 1 << 20  # bytes written at a time
_ANY = ("out", "quiet")  # settings that may differ where a run goes on

#: Of a result, for `format_table`.
COLUMNS = (
    *("method", "accuracy:.1%", "training_seconds:.1f:training s"),
    "seconds_per_step:.4f:s per step",
)


class Run:
    """A run directory, opened by `create`, to be written, or by `load`.

    Attributes:
        path: the directory.
        config: what `config.json` holds: `settings`, `seed`, `versions`, `device`, `started`.
        history: one dict for each finished epoch.
        result: what `finish` was given; None before.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        file, result = self.path / "config.json", self.path / "result.json"
        if not file.exists():
            raise FileNotFoundError(
                f"A run's directory holds {file.name}. Received: '{self.path}', which "
                f"{'does not' if self.path.exists() else 'is not there'}."
            )
        with _named(file):
            self.config = _object(read_bytes(file))
            arguments.instance("settings", self.config.get("settings"), dict, "an object")
        self._lines = self.path / "history.jsonl"
        with _named(self._lines):
            lines = read_bytes(self._lines, _MOST_BYTES) if self._lines.exists() else b""
            self.history = [_object(line) for line in lines.splitlines()]
        with _named(result):
            self.result: Any = _object(read_bytes(result)) if result.exists() else None
        self._claim = contextlib.ExitStack()

    def append_epoch(self, epoch: Mapping[str, Any]) -> None:
        """Add a finished epoch; its number, from 1, is put in unless it is given."""
        self.history.append(to_json({"epoch": len(self.history) + 1, **epoch}))
        self._write()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result of the run."""
        checksum = _sha256(self.path / WEIGHTS)
        data = to_json({**result, **({_CHECKSUM: checksum} if checksum else {})})
        with self._claim:
            write_json(self.path / "result.json", data)
        self.result = data

    def save_weights(self, model: Any) -> None:
        """Write the weights of a Keras model, whole or not at all."""
        path, part = self.path / WEIGHTS, self.path / f"part.{WEIGHTS}"
        size = sum(array.nbytes for array in model.get_weights())
        try:
            with open(part, "wb") as file:  # HDF5 ends the process where the disk is full
                for _ in range(2 + size // _BLOCK):
                    file.write(bytes(_BLOCK))
            model.save_weights(part)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def load_weights(self, model: Any) -> None:
        """Give a Keras model what `save_weights` wrote; a ValueError if that is damaged."""
        path, known = self.path / WEIGHTS, (self.result or {}).get(_CHECKSUM)
        if known not in (None, _sha256(path)):
            raise ValueError(
                f"The weights of a run must be those that training wrote. Received: '{path}', "
                "which is not there, or has been changed. Train anew, into another directory."
            )
        model.load_weights(path)

    def go_back(self, epochs: int) -> None:
        """Forget what was recorded after so many epochs, if anything was."""
        if len(self.history) > epochs:
            del self.history[epochs:]
            self._write()

    def _write(self) -> None:
        lines = (json.dumps(epoch, allow_nan=False) for epoch in self.history)
        write_text(self._lines, "".join(f"{line}\n" for line in lines))


def create(path: str | Path, config: Mapping[str, Any] | Any) -> Run:
    """Start a run, or continue the one in `path` if its settings are the same.

    These are a mapping or a dataclass, with `seed` among them. A run that failed before its first
    epoch ended is started anew, with other settings too.

    Raises:
        ValueError: `path` holds a run with other settings, named at the first difference, or
            something that is no run, or another process writes it.
    """
    path, settings = Path(arguments.path("path", path)), to_json(config)
    file = path / "config.json"
    foreign = [name for name in ("history.jsonl", "result.json") if (path / name).exists()]
    if foreign and not file.exists():
        raise ValueError(
            f"A run's directory must be new or hold a config.json. Received: '{path}', which holds "
            f"{foreign[0]} alone. Choose another directory."
        )
    directory(path)
    rule = "A run is written by one process at a time."
    with claim(path / "run.lock", rule=rule, what=path, shared=True) as claimed:
        run = Run(path) if file.exists() else None
        difference = run and _difference(run.config["settings"], settings)
        if run is None or (difference and not run.history and run.result is None):
            config = {
                "settings": settings,
                "seed": settings.get("seed"),
                "versions": _versions(),
                "device": to_json(describe_device()),
                "started": now(),
            }
            write_json(file, config)
            run = Run(path)
        elif difference:
            further = "."
            if (path / WEIGHTS).is_file():
                further = f"; its network is trained further with --weights '{path / WEIGHTS}'."
            raise ValueError(
                f"A run is continued with the settings it was started with. Received: '{path}', "
                f"which differs first in {difference}. Choose another directory, or remove this "
                f"one{further}"
            )
        if run.result is None:  # or else nothing will be written
            run._claim = claimed.pop_all()
    return run


def load(path: str | Path) -> Run:
    """Read a run, finished or not.

    Raises:
        FileNotFoundError: `path` holds no run.
        ValueError: a file of the run is damaged; it is named.
    """
    return Run(arguments.path("path", path))


def trained_plans(history: Sequence[Mapping[str, Any]]) -> list[Plan]:
    """How tensors were trained at the end of each epoch of `Run.history`."""
    return [
        Plan.from_json(epoch)
        if "modes" in epoch
        else Plan.from_mask(from_ranges(epoch["trained"], epoch["tensors"]))
        for epoch in history
    ]


def peak_memory_bytes() -> int:
    """Largest resident memory of this process so far."""
    import resource  # Unix only

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)


def _sha256(path: Path) -> str | None:
    """Of a file; None where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):  # a checkout
            versions[package] = metadata.version(package)
    return versions


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Where two JSON objects differ first, of all in what one lacks; empty where they are equal."""
    keys = [key for key in {**now, **before} if key not in _ANY]
    for key in sorted(keys, key=lambda key: None not in (before.get(key), now.get(key))):
        one, other = before.get(key, "nothing"), now.get(key, "nothing")
        if json.dumps(one) != json.dumps(other):
            return f"'{key}': {one!r} in the directory, {other!r} now"
    return ""


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Names the file in what is wrong with it."""
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"'{path}' is damaged ({str(error).rstrip('.')}). Choose another directory."
        ) from error


def _object(data: bytes) -> dict[str, Any]:
    return arguments.instance("it", parse_json(data), dict, "a JSON object")

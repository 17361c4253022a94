"""Timing profiles as files: JSON that anybody may have written, every field checked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.files import strict_json
from elastic_tf.files.atomic import directory, write_json
from elastic_tf.files.bounded import read_bytes
from elastic_tf.files.file_lock import Claim, claim
from elastic_tf.files.ranges import MOST_TENSORS, indices_to_ranges, ranges_to_indices
from elastic_tf.timing.runtime import RuntimeSettings, SettingsTrial

SCHEMA_VERSION = 1
REMEASURE = (
    "Profile this model again with elastic_tf.profile_model, or with python -m elastic_tf profile "
    "if it is one of the zoo."
)
_DIGEST = "sha256"
MAX_TIME = 1e15  # microseconds: thirty years
# [0, 99999] is one range of a file and 100,000 tensors of a set.
_MAX_MEMBERS = 5_000_000  # of all sets together
_MOST_IN_MEMORY = 10_000_000  # tensors
_MAX_CELLS = 100_000_000  # sets times tensors, for which masks are made
_MAX_THREADS = 4096
_MAX_SIZE = 2**40  # of one dimension


class TensorSpec(NamedTuple):
    """Name, shape and dtype of a trainable tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"'{self.name}' {self.shape} {self.dtype}"


class DependencySet(NamedTuple):
    """Backward and update work that runs when at least one of `tensors` is trained.

    Attributes:
        tensors: indices in forward order, ascending.
        time: microseconds per step.
    """

    tensors: tuple[int, ...]
    time: float


def check_times(t_forward: float, sets: Sequence[DependencySet], count: int) -> None:
    """Refuse times that no step can have, and sets of tensors that are not there.

    Raises:
        ValueError: `t_forward`, `sets` or `count` is out of range.
    """
    arguments.count("count", count, most=_MOST_IN_MEMORY)
    arguments.number("t_forward", t_forward, low=0.0, high=MAX_TIME, hint=REMEASURE)
    for place, group in enumerate(arguments.items("sets", sets, what="dependency sets")):
        arguments.instance("sets", group, DependencySet, "dependency sets")
        arguments.number(f"sets[{place}].time", group.time, low=0.0, high=MAX_TIME, hint=REMEASURE)
        tensors = arguments.array("sets", group.tensors)
        fits = tensors.ndim == 1 and len(tensors) > 0 and tensors.dtype.kind in "iu"
        if not fits or not (
            0 <= tensors[0] <= tensors[-1] < count and (np.diff(tensors) > 0).all()
        ):
            raise ValueError(
                f"`sets[{place}].tensors` must be ascending indices below {count}. Received: "
                f"{brief(group.tensors)}. " + REMEASURE
            )


def claimed(path: str | Path) -> Claim:
    """The right to write a profile, for as long as it is measured.

    Raises:
        ValueError: another process has it; it is named.
    """
    path = Path(path)
    directory(path.parent)
    rule = "A timing profile is written by one process at a time."
    return claim(path.parent / f".{path.name}.lock", rule=rule, what=path, shared=True)


def write(path: str | Path, fields: dict[str, Any]) -> None:
    """Write the fields of a profile; the file appears whole or not at all.

    Raises:
        ValueError: another process writes it now, or it is too large to be read again.
    """
    data = {
        **fields,
        "schema_version": SCHEMA_VERSION,
        "tensors": [spec._asdict() for spec in fields["tensors"]],
        "sets": [{"tensors": indices_to_ranges(s.tensors), "time": s.time} for s in fields["sets"]],
        "settings": dataclasses.asdict(fields["settings"]),
        "trials": [dataclasses.asdict(trial) for trial in fields["trials"]],
    }
    members = sum(len(group.tensors) for group in fields["sets"])
    cells = len(fields["sets"]) * fields["count"]
    if members > _MAX_MEMBERS or cells > _MAX_CELLS or fields["count"] > MOST_TENSORS:
        raise ValueError(
            f"A timing profile in a file holds at most {MOST_TENSORS} tensors, {_MAX_CELLS} sets "
            f"times tensors and {_MAX_MEMBERS} tensors in all sets together. Received: "
            f"{fields['count']}, {cells} and {members}. Keep it in memory."
        )
    with claimed(path):
        write_json(path, {**data, _DIGEST: _digest(data)})


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The fields of the profile in a file, and the t_dw and t_dy that the file states.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is not a profile of this version; the message names the field.
    """
    try:
        data = strict_json.parse(read_bytes(path))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no timing profile '{path}'. " + REMEASURE) from error
    except ValueError as error:
        raise ValueError(
            f"A timing profile must be a JSON file. Received: '{path}', which {error}. " + REMEASURE
        ) from error
    if not isinstance(data, dict) or "schema_version" not in data:
        raise ValueError(f"'{path}' is not a timing profile. " + REMEASURE)
    version = data["schema_version"]
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ValueError(
            f"'{path}' is a timing profile of version {brief(version)}, this library reads version "
            f"{SCHEMA_VERSION}. " + REMEASURE
        )
    digest = data.pop(_DIGEST, None)  # tables made by hand have none
    if digest not in (None, _digest(data)):
        raise ValueError(
            f"'{path}' was changed after it was written: its `{_DIGEST}` does not match. "
            f"{REMEASURE} To change a profile by hand, remove its `{_DIGEST}`."
        )
    field = _Fields(data, path)
    count = field.integer("count", 1, MOST_TENSORS)
    tensors = tuple(
        TensorSpec(
            field.text(item, "tensors", "name"),
            tuple(size or 0 for size in field.shape(item.get("shape"), "tensors")),
            field.text(item, "tensors", "dtype"),
        )
        for item in field.objects("tensors", optional=True)
    )
    if tensors and len(tensors) != count:
        field.refuse("tensors", f"{len(tensors)} entries, `count` is {count}")
    groups = field.objects("sets")
    if len(groups) * count > _MAX_CELLS:
        field.refuse("sets", f"{len(groups)} sets of {count} tensors, too many to be of one model")
    sets = tuple(
        DependencySet(
            field.indices(item.get("tensors"), count), field.number(item.get("time"), "sets")
        )
        for item in groups
    )
    fields = {
        "t_forward": field.number(data.get("t_forward"), "t_forward"),
        "sets": sets,
        "count": count,
        "tensors": tensors,
        "op_count": field.integer("op_count", 0, 10**9),
        "input_shape": tuple(
            field.shape(shape, "input_shape") for shape in field.items("input_shape")
        ),
        "batch_size": field.integer("batch_size", 0, 10**9),
        "optimizer": field.text(data, "optimizer"),
        "device": field.description("device"),
        "settings": field.settings(data.get("settings"), "settings"),
        "trials": tuple(
            SettingsTrial(
                field.settings(item.get("settings"), "trials"),
                field.optional_number(item.get("step"), "trials"),
                field.optional_number(item.get("ratio"), "trials"),
                field.text(item, "trials", "error"),
            )
            for item in field.objects("trials", optional=True)
        ),
        "method": field.text(data, "method"),
        "note": field.text(data, "note"),
        "calibration": tuple(
            field.number(factor, "calibration") for factor in field.items("calibration")
        ),
        "repeats": field.integer("repeats", 0, 10**9),
        "spread": field.number(data.get("spread"), "spread"),
        "uncertainty": field.number(data.get("uncertainty"), "uncertainty"),
        "share_attributed": field.number(data.get("share_attributed"), "share_attributed"),
        "created": field.text(data, "created"),
    }
    stated = {
        name: [field.number(time, name) for time in field.items(name)] for name in ("t_dw", "t_dy")
    }
    return fields, stated


class _Fields:
    """Typed access to the fields of a file that anybody may have written."""

    def __init__(self, data: dict[str, Any], path: str | Path) -> None:
        self.data = data
        self.path = path
        self._members = 0  # of the sets read so far

    def refuse(self, name: str, received: str) -> NoReturn:
        raise ValueError(
            f"'{self.path}' is a damaged timing profile: `{name}` holds {received}. " + REMEASURE
        )

    def number(self, value: Any, name: str) -> float:
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not real or not 0 <= value <= MAX_TIME:
            self.refuse(name, f"{brief(value)}, not a number from 0 to {MAX_TIME:g}")
        return float(value)

    def optional_number(self, value: Any, name: str) -> float | None:
        return None if value is None else self.number(value, name)

    def settings(self, value: Any, name: str) -> RuntimeSettings:
        given = value if isinstance(value, dict) else {}
        threads = [given.get(key) for key in ("inter_op_threads", "intra_op_threads")]
        if (
            given.keys() != {f.name for f in dataclasses.fields(RuntimeSettings)}
            or not (given["onednn"] is None or isinstance(given["onednn"], bool))
            or not isinstance(given["xla"], bool)
            or not all(type(n) is int and 0 <= n <= _MAX_THREADS for n in threads)
        ):
            self.refuse(name, f"the settings {brief(value)}")
        return RuntimeSettings(**given)

    def integer(self, name: str, low: int, high: int) -> int:
        value = self.data.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(name, f"{brief(value)}, not an integer from {low} to {high}")
        return int(value)

    def text(self, owner: Any, name: str, key: str | None = None) -> str:
        value = owner.get(key or name)
        if not isinstance(value, str):
            self.refuse(name, f"{brief(value)}, not a text")
        return str(value)

    def items(self, name: str) -> list[Any]:
        value = self.data.get(name)
        if not isinstance(value, list):
            self.refuse(name, f"{brief(value)}, not a list")
        return list(value)

    def objects(self, name: str, *, optional: bool = False) -> list[dict[str, Any]]:
        items = self.items(name)
        if not (items or optional) or not all(isinstance(item, dict) for item in items):
            self.refuse(name, "something else than a list of objects")
        return items

    def description(self, name: str) -> dict[str, Any]:
        """An object of single values."""
        value = self.data.get(name)
        if not isinstance(value, dict):
            self.refuse(name, f"{brief(value)}, not an object")
        for key, item in value.items():
            if isinstance(item, (dict, list)) or (key == "name" and not isinstance(item, str)):
                self.refuse(name, f"{brief(item)} as '{brief(key)}', not a single value")
        return dict(value)

    def shape(self, value: Any, name: str) -> tuple[int | None, ...]:
        sizes = value if isinstance(value, list) else [False]
        if not all(s is None or (type(s) is int and 0 <= s <= _MAX_SIZE) for s in sizes):
            self.refuse(name, f"the shape {brief(value)}")
        return tuple(sizes)

    def indices(self, value: Any, count: int) -> tuple[int, ...]:
        """The tensors of a set, given as ranges."""
        try:
            indices: list[int] = ranges_to_indices(value, count).tolist()
        except (TypeError, ValueError):
            self.refuse("sets", f"the tensors {brief(value)} of {count}")
        if not indices:
            self.refuse("sets", "a set without tensors")
        self._members += len(indices)
        if self._members > _MAX_MEMBERS:
            self.refuse("sets", f"more than {_MAX_MEMBERS} tensors in all sets together")
        return tuple(indices)


def _digest(data: dict[str, Any]) -> str:
    """sha256 of all other fields."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

"""Timing profiles as files: one JSON object, of which every field is checked.

Schema 2 holds the fields of a `TimingProfile`. Ranges [first, last] stand for the tensors of a
condition: `{"exact": [[0, 5]]}` is paid when one of the first six tensors is trained. Schema 1 had
sets of tensors in the place of cost items.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.files import strict_json
from elastic_tf.files.atomic import write_json
from elastic_tf.files.ranges import MOST_TENSORS, indices_to_ranges, ranges_to_indices
from elastic_tf.plan import NAMES
from elastic_tf.timing.cost_items import MAX_TIME, Condition, CostItem, check_size
from elastic_tf.timing.runtime import RuntimeSettings, SettingsTrial

SCHEMA_VERSION = 2
_DIGEST = "sha256"
REMEASURE = (
    "Profile this model again with elastic_tf.profile_model, or with python -m elastic_tf profile "
    "if it is one of the zoo."
)
_MODES = {name: mode for mode, name in NAMES.items()}

Made = TypeVar("Made")
Reader = Callable[[str, Any], Any]  # name and JSON value of a field -> its value


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of a trainable tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"'{self.name}' {self.shape} {self.dtype}"


class _Set(NamedTuple):
    """What schema 1 had instead of a cost item."""

    tensors: np.ndarray
    time: float


def write(path: str | Path, fields: Mapping[str, Any]) -> None:
    """Write the fields of a profile; the file appears whole or not at all.

    Raises:
        ValueError: it is too large to be read again.
    """
    items = [{**vars(item), "condition": _in_ranges(item.condition)} for item in fields["items"]]
    data = {
        "schema_version": SCHEMA_VERSION,
        **fields,
        "items": items,
        "tensors": [asdict(spec) for spec in fields["tensors"]],
        "settings": asdict(fields["settings"]),
        "trials": [asdict(trial) for trial in fields["trials"]],
    }
    write_json(path, {**data, _DIGEST: _digest(data)})


def read(path: str | Path, make: Callable[..., Made]) -> Made:
    """What `make` makes of the fields of the profile in a file.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is not a profile that this version reads, or `make` refused a value;
            the message names the field.
    """
    try:
        data = strict_json.read(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no timing profile '{path}'. " + REMEASURE) from error
    except ValueError as error:
        raise ValueError(
            f"A timing profile must be a JSON file. Received: '{path}', which {error}. " + REMEASURE
        ) from error
    if not isinstance(data, dict) or "schema_version" not in data:
        raise ValueError(f"'{path}' is not a timing profile. " + REMEASURE)
    version = data["schema_version"]
    if type(version) is not int or version not in (1, SCHEMA_VERSION):
        raise ValueError(
            f"'{path}' is a timing profile of version {brief(version)}, this library reads the "
            f"versions 1 and {SCHEMA_VERSION}. " + REMEASURE
        )
    digest = data.pop(_DIGEST, None)  # tables made by hand have none
    if digest not in (None, _digest(data)):
        raise ValueError(
            f"'{path}' was changed after it was written: its `{_DIGEST}` does not match. "
            f"{REMEASURE} To change a profile by hand, remove its `{_DIGEST}`."
        )
    try:
        count = arguments.count("count", data.get("count"), most=MOST_TENSORS)
        if version == 1:
            fields = _fields(data, {**_FIELDS, "sets": _listed(_record(_Set, _SET), count)})
            fields["items"] = _items_of(fields.pop("sets"), fields["tensors"])
        else:
            fields = _fields(data, {**_FIELDS, "items": _listed(_record(CostItem, _ITEM), count)})
        return make(count=count, **fields)
    except (ValueError, TypeError) as error:
        raise ValueError(f"'{path}' is a damaged timing profile: {error} {REMEASURE}") from error


def _digest(data: Mapping[str, Any]) -> str:
    """sha256 of all other fields."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _items_of(sets: tuple[_Set, ...], specs: tuple[TensorSpec, ...]) -> tuple[CostItem, ...]:
    """The sets of schema 1 as cost items; work belongs to the layer of its last tensor."""
    layers = [spec.name.rpartition("/")[0] for spec in specs]
    return tuple(
        CostItem.of(s.tensors, s.time, layer=layers[s.tensors[-1]] if layers else "") for s in sets
    )


def _fields(data: Mapping[str, Any], readers: Mapping[str, Reader], of: str = "") -> dict[str, Any]:
    """The value of each field of an object; what else it holds is passed over."""
    return {name: read(f"{of}{name}", data.get(name)) for name, read in readers.items()}


def _record(make: Callable[..., Any], readers: Mapping[str, Reader]) -> Reader:
    def read_object(name: str, value: Any) -> Any:
        found = arguments.instance(name, value, dict, "an object")
        return make(**_fields(found, readers, f"{name}."))

    return read_object


def _listed(reader: Reader, count: int = 0) -> Reader:
    """Reads a list; its length times `count` is limited, for the elements stand for ranges."""

    def read_list(name: str, value: Any) -> tuple[Any, ...]:
        found = arguments.items(name, value, what="a list")
        check_size(name, len(found), count)
        return tuple(reader(f"{name}[{k}]", item) for k, item in enumerate(found))

    return read_list


def _optional(reader: Reader) -> Reader:
    return lambda name, value: None if value is None else reader(name, value)


def _as_it_is(name: str, value: Any) -> Any:
    """For `make` to check."""
    del name
    return value


def _tensors(name: str, value: Any) -> np.ndarray:
    return ranges_to_indices(arguments.items(name, value, least=1, what="ranges"), MOST_TENSORS)


def _condition(name: str, value: Any) -> Condition:
    modes = arguments.instance(name, value, dict, "ranges of tensors by mode")
    choices = [
        (int(k), _MODES[arguments.choice(name, mode, _MODES)])
        for mode, ranges in modes.items()
        for k in _tensors(name, ranges)
    ]
    return tuple(sorted(choices))


def _in_ranges(condition: Condition) -> dict[str, list[list[int]]]:
    """The JSON form of a condition."""
    by_mode: dict[str, list[int]] = {}
    for tensor, mode in condition:
        by_mode.setdefault(NAMES[mode], []).append(tensor)
    return {mode: indices_to_ranges(tensors) for mode, tensors in by_mode.items()}


def _description(name: str, value: Any) -> dict[str, Any]:
    """An object of single values."""
    found = arguments.instance(name, value, dict, "an object")
    for key, item in found.items():
        kind = str if key == "name" else (str, bool, int, float, type(None))
        arguments.instance(f"{name}.{key}", item, kind, "a single value")
    return dict(found)


_text: Reader = arguments.text
_count: Reader = partial(arguments.count, least=0)
_number: Reader = partial(arguments.number, low=0.0, high=MAX_TIME)
_shape = _listed(_optional(partial(arguments.count, least=0, most=2**40)))
_settings = _record(
    RuntimeSettings,
    {
        "onednn": _optional(arguments.flag),
        "inter_op_threads": partial(arguments.count, least=0, most=4096),
        "intra_op_threads": partial(arguments.count, least=0, most=4096),
        "xla": arguments.flag,
    },
)
_trial = {"settings": _settings, "step": _optional(_number), "ratio": _optional(_number)}
_SET = {"tensors": _tensors, "time": _number}
_ITEM = {
    "condition": _condition,
    "layer": _text,
    "kind": _as_it_is,
    "time": _as_it_is,
    "bytes": _as_it_is,
}
_FIELDS: dict[str, Reader] = {
    "t_forward": _as_it_is,
    "tensors": _listed(_record(TensorSpec, {"name": _text, "shape": _shape, "dtype": _text})),
    "op_count": _count,
    "input_shape": _listed(_shape),
    "batch_size": _count,
    "optimizer": _text,
    "device": _description,
    "settings": _settings,
    "trials": _listed(_record(SettingsTrial, {**_trial, "error": _text})),
    "method": _text,
    "note": _text,
    "calibration": _listed(_number),
    "repeats": _count,
    "spread": _number,
    "uncertainty": _number,
    "share_attributed": _number,
    "created": _text,
}

"""Timing profiles as files: one JSON object, of which every field is checked.

It holds the fields of a `TimingProfile`; ranges [first, last] stand for the tensors of a cost item.
A checksum of all values finds what the checks of single fields cannot: another digit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.files import json_form
from elastic_tf.files.atomic import write_json
from elastic_tf.files.json_form import MOST_TENSORS, from_ranges, to_json, to_ranges
from elastic_tf.timing.cost_items import MAX_TIME, CostItem, ModeCost
from elastic_tf.timing.runtime import RuntimeSettings

SCHEMA_VERSION = 6
_MOST_CELLS = 10_000_000  # items times tensors: a hundred times those of a ViT
REMEASURE = (
    "Profile this model again with elastic_tf.profile_model, or with python -m elastic_tf profile "
    "if it is one of the zoo."
)

Made = TypeVar("Made")


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of a trainable tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"'{self.name}' {self.shape} {self.dtype}"


@dataclass(frozen=True)
class _Object:
    """What is made of a JSON object, and what it holds by example."""

    kind: Callable[..., Any]
    fields: Mapping[str, Any]


# What a file holds, by example; (example,) stands for it or null.
_RANGES = range(0)  # of tensors
_SETTINGS = _Object(
    RuntimeSettings,
    {"onednn": (True,), "inter_op_threads": 0, "intra_op_threads": 0, "xla": True},
)
_ITEM = _Object(CostItem, {"tensors": _RANGES, "layer": "", "kind": "", "time": 0.0})
_MODE = {"tensor": 0, "mode": "", "time": 0.0, "spared": 0.0, "shared": _RANGES}
_PROFILE = {
    "t_forward": 0.0,
    "items": [_ITEM],
    "prefix": [_ITEM],
    "modes": [_Object(ModeCost, _MODE)],
    "tensors": [_Object(TensorSpec, {"name": "", "shape": [0], "dtype": ""})],
    "input_shape": [[(0,)]],
    "batch_size": 0,
    "optimizer": "",
    "device": {},
    "settings": _SETTINGS,
    "method": "",
    "note": "",
    "calibration": [0.0],
    "repeats": 0,
    "spread": 0.0,
    "uncertainty": 0.0,
    "share_attributed": 0.0,
    "created": "",
}


def write(path: str | Path, profile: Any) -> None:
    """Write a profile; the file appears whole or not at all."""
    data = {"schema_version": SCHEMA_VERSION, **to_json(profile)}
    for item in (*data["items"], *data["prefix"], *data["modes"]):
        key = "shared" if "shared" in item else "tensors"
        item[key] = to_ranges(np.isin(np.arange(data["count"]), item[key]))
    write_json(path, {**data, "checksum": checksum(data)})


def checksum(data: Mapping[str, Any]) -> int:
    """CRC-32 of all other values, whatever their order and the white space between them."""
    values = {key: value for key, value in data.items() if key != "checksum"}
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def read(path: str | Path, make: Callable[..., Made]) -> Made:
    """What `make` makes of the fields of the profile in a file.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is not a profile that this version reads, or `make` refused a value;
            the message names the field.
    """
    try:
        return make(**_fields(json_form.read(path)))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no timing profile '{path}'. " + REMEASURE) from error
    except (ValueError, TypeError, RecursionError) as error:
        why = str(error).rstrip(".")
        raise ValueError(f"'{path}' is no timing profile ({why}). {REMEASURE}") from error


def _fields(data: Any) -> dict[str, Any]:
    """The fields of a `TimingProfile`, checked one by one."""
    data = arguments.instance("it", data, dict, "an object")
    version = data.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise ValueError(
            f"it has the version {brief(version)}, this library reads {SCHEMA_VERSION} alone"
        )
    stored, found = data.get("checksum"), checksum(data)
    if stored != found:
        raise ValueError(f"it is damaged: the checksum is {brief(stored)}, of its values {found}")
    count = arguments.count("count", data.get("count"), most=MOST_TENSORS)
    fields = {key: _checked(key, data.get(key), like, count) for key, like in _PROFILE.items()}
    return {"count": count, **fields}


def _checked(name: str, value: Any, like: Any, count: int) -> Any:
    """What a JSON value of the form of `like` stands for, lists as tuples; of `count` tensors."""
    if isinstance(like, tuple):
        return None if value is None else _checked(name, value, like[0], count)
    if isinstance(like, dict):
        return arguments.instance(name, value, dict, "an object")
    if isinstance(like, _Object):
        found = arguments.instance(name, value, dict, "an object")
        inner = {k: (f"{name}.{k}", found.get(k), one) for k, one in like.fields.items()}
        return like.kind(**{k: _checked(*given, count) for k, given in inner.items()})
    if isinstance(like, list):
        given = arguments.items(name, value, what="a list")
        if like == [_ITEM] and len(given) * count > _MOST_CELLS:  # before there is an array of it
            raise ValueError(
                f"`{name}` must be of one model. Received: {len(given)} items of {count} tensors."
            )
        return tuple(_checked(f"{name}[{k}]", one, like[0], count) for k, one in enumerate(given))
    if isinstance(like, range):
        return tuple(np.flatnonzero(from_ranges(value, count)).tolist())
    if isinstance(like, bool):
        return arguments.flag(name, value)
    if isinstance(like, str):
        return arguments.instance(name, value, str, "a text")
    if isinstance(like, int):
        return arguments.count(name, value, least=0, most=2**40)
    return arguments.number(name, value, low=0.0, high=MAX_TIME)

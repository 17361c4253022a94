"""Timing profiles as files: one JSON object, of which every field is checked.

It holds the fields of a `TimingProfile`; ranges [first, last] stand for the tensors of a cost item.
A checksum of all values finds what the checks of single fields cannot: another digit.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.files import json_form
from elastic_tf.files.atomic import write_json
from elastic_tf.files.json_form import MOST_TENSORS, from_ranges, to_json, to_ranges
from elastic_tf.timing.cost_items import MAX_TIME, CostItem

SCHEMA_VERSION = 6
_MOST_CELLS = 10_000_000  # items times tensors: a hundred times those of a ViT
REMEASURE = (
    "Profile this model again with elastic_tf.profile_model, or with python -m elastic_tf profile "
    "if it is one of the zoo."
)

_SET = "].tensors"  # field of cost items
_CHECKS: dict[Any, Callable[..., Any]] = {
    bool: arguments.flag,
    str: functools.partial(arguments.instance, kind=str, what="a text"),
    int: functools.partial(arguments.count, least=0, most=2**40),
    float: functools.partial(arguments.number, low=0.0, high=MAX_TIME),
}
Made = typing.TypeVar("Made")


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of a trainable tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"'{self.name}' {self.shape} {self.dtype}"


def write(path: str | Path, profile: Any) -> None:
    """Write a `TimingProfile`; the file appears whole or not at all."""
    data = {"schema_version": SCHEMA_VERSION, **to_json(profile)}
    for item in (*data["items"], *data["prefix"]):
        item["tensors"] = to_ranges(np.isin(np.arange(data["count"]), item["tensors"]))
    write_json(path, {**data, "checksum": checksum(data)})


def checksum(data: Mapping[str, Any]) -> int:
    """CRC-32 of all other values, whatever their order and the white space between them."""
    values = {key: value for key, value in data.items() if key != "checksum"}
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def read(path: str | Path, kind: type[Made]) -> Made:
    """The profile in a file, of the class `kind`.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is not a profile that this version reads; the message names the field.
    """
    try:
        data = arguments.instance("it", json_form.read(path), dict, "an object")
        version, stored, found = data.get("schema_version"), data.get("checksum"), checksum(data)
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"it has the version {brief(version)}, this library reads {SCHEMA_VERSION} alone"
            )
        if stored != found:
            raise ValueError(
                f"it is damaged: the checksum is {brief(stored)}, of its values {found}"
            )
        count = arguments.count("count", data.get("count"), most=MOST_TENSORS)
        return _made("", data, kind, count)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no timing profile '{path}'. " + REMEASURE) from error
    except (ValueError, TypeError, RecursionError) as error:
        why = str(error).rstrip(".")
        raise ValueError(f"'{path}' is no timing profile ({why}). {REMEASURE}") from error


_hints = functools.cache(typing.get_type_hints)


def _made(name: str, value: Any, hint: Any, count: int) -> Any:
    """What a JSON value stands for in a field of that type, in a profile of `count` tensors."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        found, dot = arguments.instance(name, value, dict, "an object"), name and f"{name}."
        fields = _hints(hint).items()
        return hint(**{key: _made(dot + key, found.get(key), one, count) for key, one in fields})
    if name.endswith(_SET):
        return tuple(np.flatnonzero(from_ranges(value, count)).tolist())
    kind, part = typing.get_origin(hint), next(iter(typing.get_args(hint)), None)
    if kind is types.UnionType:
        return None if value is None else _made(name, value, part, count)
    if kind is Mapping:
        return arguments.instance(name, value, dict, "an object")
    if kind is tuple:
        given = arguments.items(name, value, what="a list")
        if part is CostItem and len(given) * count > _MOST_CELLS:  # before an array is made of it
            raise ValueError(
                f"`{name}` must be of one model. Received: {len(given)} items of {count} tensors."
            )
        return tuple(_made(f"{name}[{k}]", one, part, count) for k, one in enumerate(given))
    return _CHECKS[hint](name, value)

"""Timing profiles as files: the fields of a `TimingProfile` as one JSON object, and a checksum.

Ranges [first, last] stand for the tensors of a cost item.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.files import json_form
from elastic_tf.files.atomic import write_json
from elastic_tf.files.json_form import from_ranges, to_json, to_ranges
from elastic_tf.timing.cost_items import CostItem

SCHEMA_VERSION = 6
REMEASURE = (
    "Profile this model again with elastic_tf.profile_model, or with python -m elastic_tf profile "
    "if it is one of the zoo."
)


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


def read(path: str | Path) -> dict[str, Any]:
    """The fields of the profile in a file.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: the file is not a profile that this version reads, or was changed.
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
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no timing profile '{path}'. " + REMEASURE) from error
    except (ValueError, TypeError, RecursionError) as error:
        why = str(error).rstrip(".")
        raise ValueError(f"'{path}' is no timing profile ({why}). {REMEASURE}") from error
    specs = [(one["name"], tuple(one["shape"]), one["dtype"]) for one in data["tensors"]]
    return {
        **data,
        **{name: _items(data[name], data["count"]) for name in ("items", "prefix")},
        "tensors": tuple(TensorSpec(*spec) for spec in specs),
        "input_shape": tuple(map(tuple, data["input_shape"])),
        "calibration": tuple(data["calibration"]),
    }


def _items(found: list[dict[str, Any]], count: int) -> tuple[CostItem, ...]:
    masks = [from_ranges(item["tensors"], count) for item in found]
    return tuple(
        CostItem(**{**item, "tensors": tuple(np.flatnonzero(mask).tolist())})
        for item, mask in zip(found, masks)
    )

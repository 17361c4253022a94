"""Settings, records and results as values that a JSON file can hold, and give back."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import numpy as np

from elastic_tf.arguments import brief
from elastic_tf.files.atomic import as_utf8

# What `strict_json` reads again.
_MOST_DEPTH = 40
_MOST_INTEGER = 10**39


def to_json(value: Any) -> Any:
    """`value` of dicts, lists, scalars and text alone, as `json.loads` would return it.

    Arrays become lists, NumPy and TensorFlow scalars numbers, dataclasses dicts, paths text; a
    number that is not finite becomes None.

    Raises:
        TypeError: something that has no such form.
        ValueError: it is nested in itself or too deeply, or holds an integer of 40 digits.
    """
    return _json_form(value, _MOST_DEPTH)


def now() -> str:
    """The day and the second, in UTC, as ISO 8601 has them."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _json_form(value: Any, depth: int) -> Any:
    """The JSON form of something that is nested at most so deep."""
    if depth == 0:
        raise ValueError(
            f"`value` must be nested at most {_MOST_DEPTH} deep, and not in itself. Received: more."
        )
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return as_utf8(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _json_form(getattr(value, field.name), depth - 1) for field in fields}
    if isinstance(value, Mapping):
        return {as_utf8(str(key)): _json_form(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_form(item, depth - 1) for item in value]
    if isinstance(value, (set, frozenset)):
        items = [_json_form(item, depth - 1) for item in value]
        try:
            return sorted(items)
        except TypeError:  # of several kinds
            return sorted(items, key=repr)
    if isinstance(value, int):
        if abs(value) >= _MOST_INTEGER:
            raise ValueError(
                f"`value` must hold integers below {_MOST_INTEGER:.0e}. Received: {brief(value)}."
            )
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, os.PathLike):
        return as_utf8(os.fsdecode(value))
    if isinstance(value, (np.ndarray, np.generic)):
        return _json_form(value.tolist(), depth - 1)
    if callable(getattr(value, "numpy", None)):  # a tensor
        return _json_form(value.numpy(), depth - 1)
    raise TypeError(
        "A run stores a `value` of numbers, text, lists and dicts. Received: "
        f"{brief(value)} of type {type(value).__name__}. Store a description of it."
    )

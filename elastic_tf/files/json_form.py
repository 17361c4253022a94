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


def now() -> str:
    """The day and the second, in UTC, as ISO 8601 has them."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def to_json(value: Any) -> Any:
    """`value` of dicts, lists, scalars and text alone, as `json.loads` would return it.

    Arrays become lists, dataclasses dicts, paths text; a number that is not finite becomes None.
    What has no such form is a TypeError.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, os.PathLike)):
        return as_utf8(os.fsdecode(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: to_json(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        return {as_utf8(str(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_json(item) for item in value), key=repr)
    if isinstance(value, (np.ndarray, np.generic)):
        return to_json(value.tolist())
    if callable(getattr(value, "numpy", None)):  # a tensor
        return to_json(value.numpy())
    raise TypeError(
        "A file stores a `value` of numbers, text, lists and dicts. Received: "
        f"{brief(value)} of type {type(value).__name__}. Store a description of it."
    )

"""What travels: the tensors that changed, by their number among a model's weights.

An array "3" of float32 is the new value of weight 3. One of float16 or int8 is its difference from
the base, to be multiplied by the array "3.scales", one for each output channel. Vectors, which are
small, are always float32. What rounding left of a difference is the sender's residual, and is added
to the next one: over rounds nothing is lost.

Source: Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

DTYPES = ("float32", "float16", "int8")
_LARGEST = {"float16": 1.0, "int8": 127.0}  # what the largest number of a channel becomes
SCALES = ".scales"


def rate_in(config: Mapping[str, Any]) -> float:
    """The learning rate of a round: "rate", which falls on a cosine where "rounds" are given."""
    rounds, number = int(config.get("rounds", 0)), int(config.get("server-round", 1))
    share = 0.5 + 0.5 * math.cos(math.pi * min((number - 1) / rounds, 1.0)) if rounds else 1.0
    return share * float(config["rate"])


def fingerprint(weights: Iterable[np.ndarray]) -> str:
    """A hash of all bits of a model's weights."""
    digest = hashlib.sha256()
    for value in weights:
        digest.update(f"{value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()[:16]


def packed(
    new: Sequence[np.ndarray] | Mapping[int, np.ndarray],
    base: Sequence[np.ndarray] | Mapping[int, np.ndarray],
    dtype: str = "float32",
    residual: Mapping[int, np.ndarray] | None = None,
    *,
    dense: bool = False,
) -> tuple[ArrayRecord, dict[int, np.ndarray]]:
    """Arrays to send for the weights that differ in any bit, and the residuals that they leave.

    The receiver has the weights `base`; `residual` is what was left of earlier differences, by
    number; `dtype` one of `DTYPES`. With `dense` all weights are sent, in float32.
    """
    if dtype not in DTYPES:
        raise ValueError(f"`dtype` must be one of {', '.join(DTYPES)}. Received: {dtype!r}.")
    arrays, left = dict[str, Array](), dict(residual or {})
    for k in sorted(new) if isinstance(new, Mapping) else range(len(new)):
        value = new[k]
        if not dense and value.tobytes() == base[k].tobytes():
            continue
        if dense or dtype == "float32" or value.ndim < 2 or value.dtype != np.float32:
            arrays[str(k)] = Array(np.ascontiguousarray(value))
            continue
        difference = value - base[k] + left.get(k, np.float32(0.0))
        axis = max(a for a in range(value.ndim) if value.shape[a] > 1 or a == 0)
        others = tuple(a for a in range(value.ndim) if a != axis)
        scales = np.abs(difference).max(axis=others, keepdims=True) / np.float32(_LARGEST[dtype])
        scaled = difference / np.where(scales > 0.0, scales, np.float32(1.0))
        small = (np.rint(scaled) if dtype == "int8" else scaled).astype(dtype)
        left[k] = difference - small.astype(np.float32) * scales
        arrays |= {str(k): Array(small), f"{k}{SCALES}": Array(scales)}
    return ArrayRecord(arrays), left


def unpacked(record: ArrayRecord, base: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The new values that arrays mean, and the old ones in `base`, by the number of the weight.

    Raises:
        ValueError: they are not of this network, or not finite.
    """
    found = {}
    for name, array in record.items():
        if name.endswith(SCALES):
            continue
        k = int(name) if name.isdecimal() else -1
        if k not in base:
            raise ValueError(f"an array {name!r}, for a network of {len(base)} weights")
        old, value = base[k], array.numpy()
        if value.shape != old.shape:
            raise ValueError(f"weight {k} of shape {value.shape} instead of {old.shape}")
        scales = record.get(name + SCALES)
        if scales is not None:
            value = old + value.astype(np.float32) * scales.numpy()
        if (value.shape, value.dtype) != (old.shape, old.dtype):
            raise ValueError(f"weight {k} as {value.dtype} {value.shape} instead of {old.dtype}")
        if not np.isfinite(value).all():
            raise ValueError(f"weight {k} with values that are not finite")
        found[k] = value
    return found


def with_changes(record: ArrayRecord, base: Sequence[np.ndarray]) -> list[np.ndarray]:
    """All weights after the changes."""
    found = unpacked(record, dict(enumerate(base)))
    return [found.get(k, old) for k, old in enumerate(base)]

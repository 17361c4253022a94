"""Delta files: what training changed in a model, and nothing else of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
import tensorflow as tf
from safetensors import SafetensorError, safe_open

from elastic_tf import arguments, stack
from elastic_tf.files import parse_json, write_bytes

_HEADER = "elastic_tf.delta 1"  # its key in the metadata of the file, with the format's number
_LARGEST = {"float16": 1.0, "int8": 127.0}  # what the largest number of a channel becomes
# What a file raises that is damaged, or that another program wrote.
_DAMAGE = (SafetensorError, ValueError, KeyError, TypeError, IndexError, OverflowError)


class _Change(NamedTuple):
    """What is stored of a weight: slices along an axis."""

    axis: int
    is_difference: bool  # from the base, or else new values
    values: np.ndarray
    slices: np.ndarray | None = None  # their indices, int32; None: all
    scales: np.ndarray | None = None  # that the values are to be multiplied by

    def applied(self, old: np.ndarray) -> np.ndarray:
        """The new weight, `old` being the base's."""
        part = self.values
        if self.scales is not None:
            part = part.astype(old.dtype) * self.scales
        new = np.array(old)
        part, there = (np.moveaxis(np.atleast_1d(one), self.axis, 0) for one in (part, new))
        at = slice(None) if self.slices is None else self.slices
        there[at] = there[at] + part if self.is_difference else part
        return new


def save_delta(
    model: tf.keras.Model,
    base: tf.keras.Model | Sequence[np.ndarray],
    path: str | Path,
    dtype: str = "float32",
) -> None:
    """Write what differs between the weights of `model` and of `base`: a safetensors file.

    All weights are compared in Keras's order, moving statistics included. Of a changed one, the
    changed slices along one axis are stored: output channels, or rows of an embedding. From the
    first weight on that `base` has not, or in another shape, all are stored: a new head. The file
    appears whole or not at all.

    Args:
        model: built Keras model.
        base: what training began with: `model.get_weights()` from before, or a Keras model with
            weights of its own.
        path: file to write; its usual ending is .safetensors.
        dtype: "float32" stores the new values, bit for bit. "float16" and "int8" store kernels in 2
            or 1 bytes a value and a scale for each channel: their differences or, where these are
            larger than the values, as in a new head, the values. Vectors stay exact.

    Raises:
        TypeError: `model` or `base` is of another kind.
        ValueError: `base` shares weights with `model` or begins with others; another `dtype`.
        OSError: the file cannot be written.
    """
    arguments.choice("dtype", dtype, ("float32", *_LARGEST))
    file, variables = arguments.path("path", path), _variables("model", model)
    before, after = _base(base, variables), [variable.numpy() for variable in variables]
    known = len(before)
    before += after[known:]
    changes = {
        k: _change(new, old if k < known else None, dtype)
        for k, (new, old) in enumerate(zip(after, before))
        if k >= known or (_bits(new) != _bits(old)).any()
    }
    header = {
        "base": _hashes(before, changes),
        "result": _hashes(_applied(changes, before)),
        "names": {k: variables[k].name for k in changes},
        "axes": {k: change.axis for k, change in changes.items()},
        "differences": [k for k, change in changes.items() if change.is_difference],
    }
    tensors = {
        f"{k}.{name}": np.ascontiguousarray(part)
        for k, change in changes.items()
        for name, part in change._asdict().items()
        if isinstance(part, np.ndarray)
    }
    metadata = {_HEADER: json.dumps(header)}
    write_bytes(file, safetensors.numpy.save(tensors, metadata=metadata))


def load_delta(model: tf.keras.Model, path: str | Path) -> None:
    """Turn `model`, which has the weights of the base, into the one that was saved.

    Hashes are checked before anything changes: of the base's weights that the result rests on, and
    of the result. Weights that the file holds whole, as a new head, may have any values before.

    Args:
        model: built Keras model.
        path: file that `save_delta` wrote.

    Raises:
        TypeError: `model` is no Keras model.
        ValueError: it has other weights than the base; or the file is damaged, or no delta.
        OSError: the file cannot be read.
    """
    variables = _variables("model", model)
    before = [variable.numpy() for variable in variables]
    file = arguments.path("path", path)
    try:
        header, changes = _read(file)
        hashes, wanted = _hashes(before, changes), list(header["base"])
        if hashes == wanted:
            after = _applied(changes, before)
            if _hashes(after) != header["result"]:
                raise ValueError("its values are not those that were written")
    except _DAMAGE as error:
        raise ValueError(
            f"`path` must be a whole file of save_delta. Received: '{file}', which is refused by "
            f"{arguments.brief(error)}. Copy it again."
        ) from error
    if hashes != wanted:
        k = next((k for k, pair in enumerate(zip(hashes, wanted)) if pair[0] != pair[1]), None)
        said = f"{len(hashes)} weights instead of {len(wanted)}"
        if k is not None:
            said = f"another weight {k}, '{variables[k].name}' of shape {before[k].shape}"
        raise ValueError(
            f"`model` must have the weights that '{file}' was made from. Received: "
            f"'{model.name}', which has {said}. Load the base's weights into it first."
        )
    for k in changes:
        variables[k].assign(after[k])


def _variables(name: str, model: Any) -> list[tf.Variable]:
    """All weights of a built model in Keras's order, but for vocabularies, which are none."""
    stack.keras_model(name, model)
    return [weight for weight in stack.weights(model) if isinstance(weight, tf.Variable)]


def _base(base: Any, variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    """The weights of `base` up to the first that is not like the model's."""
    if isinstance(base, tf.keras.Model):
        own = _variables("base", base)
        shared = {id(one) for one in own} & {id(one) for one in variables}
        if shared:
            raise ValueError(
                f"`base` must have weights of its own. Received: '{base.name}', which shares "
                f"{len(shared)} with `model`, as after ElasticModel.from_model. Take base = "
                "model.get_weights() before training."
            )
        base = [one.numpy() for one in own]
    what = "a Keras model, or its get_weights() from before training"
    given = [arguments.array("base", one) for one in arguments.items("base", base, what=what)]
    numbers = [one for one in given if one.dtype != object]
    before = []
    for old, variable in zip(numbers, variables):
        if (old.shape, old.dtype) != (variable.shape, variable.dtype.as_numpy_dtype):
            break
        before.append(old)
    if not before:
        first = f"the first of shape {numbers[0].shape}" if numbers else "none of numbers"
        raise ValueError(
            f"`base` must begin with the weights of `model`. Received: {len(given)} arrays, "
            f"{first}. Give {what}."
        )
    return before


def _change(new: np.ndarray, old: np.ndarray | None, dtype: str) -> _Change:
    """What to store of `new`: the fewest slices along an axis, exact or scaled."""
    whole = np.atleast_1d(new)
    differs = np.ones(whole.shape, bool) if old is None else np.atleast_1d(_bits(new) != _bits(old))
    others = [tuple(k for k in range(whole.ndim) if k != axis) for axis in range(whole.ndim)]
    along = [differs.any(axis=rest) for rest in others]
    # Of equals the last one, but not one of length 1, which depthwise kernels have.
    axis = min(range(whole.ndim), key=lambda k: (along[k].mean(), whole.shape[k] == 1, -k))
    differing = np.flatnonzero(along[axis]).astype(np.int32)
    slices: np.ndarray | None = differing
    part = whole.take(differing, axis)
    if part.nbytes + 4 * along[axis].sum() >= whole.nbytes:  # with the indices
        part, slices = whole, None
    exact = _Change(axis, False, part, slices)
    if dtype == "float32" or new.ndim < 2 or new.dtype not in (np.float32, np.float64):
        return exact
    parts = {False: part}
    if old is not None:
        with np.errstate(all="ignore"):
            parts[True] = part - (old if slices is None else old.take(slices, axis))
    scales = {
        kind: np.abs(one).max(axis=others[axis], keepdims=True) for kind, one in parts.items()
    }
    # The error of a channel goes with its scale.
    kind = min(scales, key=lambda kind: np.square(scales[kind], dtype=np.float64).sum())
    if not np.isfinite(scales[kind]).all():
        return exact
    scale = np.maximum(scales[kind] / _LARGEST[dtype], np.finfo(new.dtype).tiny)
    values = parts[kind] / scale
    if dtype == "int8":
        values = np.rint(values).clip(-_LARGEST[dtype], _LARGEST[dtype])
    return _Change(axis, kind, values.astype(dtype), slices, scale)


def _applied(changes: Mapping[int, _Change], before: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The weights after the changes."""
    return [changes[k].applied(old) if k in changes else old for k, old in enumerate(before)]


def _hashes(
    weights: Sequence[np.ndarray], changes: Mapping[int, _Change] | None = None
) -> list[str]:
    """Of each weight, a hash of its shape, and of its values unless a change replaces them all."""
    found = []
    for k, value in enumerate(weights):
        change = (changes or {}).get(k)
        rests = change is None or change.is_difference or change.slices is not None
        digest = hashlib.sha256(f"{value.dtype.name} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes() if rests else b"")
        found.append(digest.hexdigest()[:16])
    return found


def _bits(value: np.ndarray) -> np.ndarray:
    """The values as integers, so that -0.0 and each NaN differ from others."""
    return np.ascontiguousarray(value).view(f"u{value.itemsize}").reshape(value.shape)


def _read(file: str) -> tuple[dict[str, Any], dict[int, _Change]]:
    """The header, and the changes by weight; errors as of a damaged file."""
    with safe_open(file, framework="np") as opened:
        header = parse_json((opened.metadata() or {})[_HEADER].encode())
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}
    changes = {}
    for k, axis in header["axes"].items():
        parts = {name: tensors.get(f"{k}.{name}") for name in ("slices", "scales")}
        is_difference = int(k) in header["differences"]
        changes[int(k)] = _Change(axis, is_difference, tensors[f"{k}.values"], **parts)
    return header, changes

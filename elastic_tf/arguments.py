"""What functions refuse: one rule for each kind of argument, said with the name and the value.

Every function returns the argument in the form that is used, and leaves the argument as it is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

MOST = 10**9  # of anything that is counted
_MOST_SHOWN = 120  # characters of a value in a message


def brief(value: Any) -> str:
    """A value as a message shows it: its beginning, if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list in itself
        text = f"something of type {type(value).__name__} that is too long to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: bool = False,
    below: bool = False,
    hint: str = "",
) -> float:
    """A finite number from `low` to `high`.

    Args:
        name: of the argument.
        value: what was given for it.
        low: least value; `above`: which itself is too small.
        high: largest value; `below`: which itself is too large.
        hint: a sentence on the way out.

    Raises:
        ValueError: it is something else.
    """
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    # An integer may be too large for a float.
    fits = real and low <= value <= high and abs(value) < float("inf")
    if not fits or (above and value == low) or (below and value == high) or abs(value) > 1e308:
        left = "" if low == -math.inf else f"{'above' if above else 'at least'} {low:g}"
        right = "" if high == math.inf else f"{'below' if below else 'at most'} {high:g}"
        rule = " and ".join(part for part in (left, right) if part)
        raise ValueError(
            f"`{name}` must be a finite number{', ' + rule if rule else ''}. "
            f"Received: {name}={brief(value)}. {hint}".strip()
        )
    return float(value)


def count(name: str, value: Any, *, least: int = 1, most: int = MOST, hint: str = "") -> int:
    """An integer from `least` to `most`.

    Raises:
        ValueError: it is something else.
    """
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        rule = f"an integer of at least {least}"
        if whole and value > most:
            rule = f"an integer from {least} to {most}"
        raise ValueError(f"`{name}` must be {rule}. Received: {brief(value)}. {hint}".strip())
    return int(value)


def flag(name: str, value: Any) -> bool:
    """True or False.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False. Received: {name}={brief(value)}.")
    return bool(value)


def text(name: str, value: Any) -> str:
    """A text.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a text. Received: {name}={brief(value)}.")
    return value


def choice(name: str, value: Any, choices: Collection[str]) -> str:
    """One of some texts.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(choices)}. Received: {name}={brief(value)}."
        )
    return value


def path(name: str, value: Any) -> str:
    """A path, as text.

    Raises:
        TypeError: it is something else.
        ValueError: no file can have it.
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise TypeError(f"`{name}` must be a path. Received: {name}={brief(value)}.")
    found = os.fspath(value)
    if not found or "\0" in found:
        raise ValueError(f"`{name}` must be the path of a file. Received: {name}={found!r}.")
    return found


def numbers(
    name: str,
    values: Any,
    *,
    shape: tuple[int | None, ...] = (None,),
    low: float = -math.inf,
    high: float = math.inf,
    finite: bool = True,
    hint: str = "",
) -> np.ndarray:
    """Real numbers as a new float64 array.

    Args:
        name: of the argument.
        values: an array, or what makes one.
        shape: its lengths; None: any, 0 too.
        low: least value.
        high: largest value.
        finite: refuse NaN and infinity too.
        hint: a sentence on the way out.

    Raises:
        ValueError: it is of another shape or dtype, or a value is out of range; the first is named.
    """
    found = array(name, values)
    fits = found.ndim == len(shape) and all(
        want is None or want == have for want, have in zip(shape, found.shape)
    )
    if not fits or found.dtype.kind not in "iufb" or found.dtype.kind == "b":
        said = ", ".join("n" if size is None else str(size) for size in shape)
        said += "," * (len(shape) == 1)
        raise ValueError(
            f"`{name}` must be numbers of shape ({said}). Received: {found.dtype} of shape "
            f"{found.shape}: {brief(values)}. {hint}".strip()
        )
    result = found.astype(np.float64)
    wrong = ~np.isfinite(result) if finite else np.zeros(result.shape, bool)
    wrong |= (result < low) | (result > high)
    if wrong.any():
        where = tuple(int(k) for k in np.argwhere(wrong)[0])
        rule = " and ".join(
            part
            for part in (
                "finite" if finite else "",
                "" if low == -math.inf else f"at least {low:g}",
                "" if high == math.inf else f"at most {high:g}",
            )
            if part
        )
        place = ", ".join(map(str, where))
        raise ValueError(
            f"`{name}` must be {rule}. Received: {result[where]} at {name}[{place}]. {hint}".strip()
        )
    return result


def mask(name: str, values: Any, size: int, *, hint: str = "") -> np.ndarray:
    """One bool for each tensor, as a new array.

    Raises:
        ValueError: it is of another shape or dtype.
    """
    found = array(name, values)
    if found.dtype != np.bool_ or found.shape != (size,):
        raise ValueError(
            f"`{name}` must be a bool array of shape ({size},). Received: {found.dtype} of shape "
            f"{found.shape}: {brief(values)}. {hint}".strip()
        )
    return found.copy()


def array(name: str, values: Any) -> np.ndarray:
    """An array of what is given.

    Raises:
        ValueError: its rows differ in length.
    """
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be an array. Received: rows of different lengths: {brief(values)}."
        ) from error


def samples(name: str, values: Any) -> np.ndarray:
    """An array of numbers or texts, samples first.

    Raises:
        ValueError: it is something else.
    """
    found = array(name, values)
    if found.ndim == 0 or found.dtype.kind not in "biufSU":
        hint = "" if found.ndim else f" A single sample is `np.asarray({name})[None]`."
        raise ValueError(
            f"`{name}` must be arrays with samples first. Received: {found.dtype} of shape "
            f"{found.shape}: {brief(values)}.{hint}"
        )
    return found


def items(name: str, values: Any, *, least: int = 0, what: str = "a sequence") -> list[Any]:
    """The elements of a sequence that is no text.

    Raises:
        TypeError: it is none.
        ValueError: it is too short.
    """
    is_list = isinstance(values, Sequence) and not isinstance(values, (str, bytes))
    if not is_list and not (isinstance(values, np.ndarray) and values.ndim):
        raise TypeError(f"`{name}` must be {what}. Received: {name}={brief(values)}.")
    found = list(values)
    if len(found) < least:
        raise ValueError(
            f"`{name}` must be {what} of at least {least}. Received: {len(found)}: {brief(values)}."
        )
    return found


def function(name: str, value: Any, *, hint: str = "") -> Any:
    """Something that can be called.

    Raises:
        TypeError: it cannot.
    """
    if not callable(value):
        raise TypeError(f"`{name}` must be a function. Received: {brief(value)}. {hint}".strip())
    return value


def instance(
    name: str, value: Any, kind: type | tuple[type, ...], what: str, hint: str = ""
) -> Any:
    """An object of a class.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, kind):
        raise TypeError(
            f"`{name}` must be {what}. Received: {brief(value)} of type {type(value).__name__}. "
            f"{hint}".strip()
        )
    return value


def profile(name: str, value: Any, *parts: str) -> Any:
    """A timing profile, or what has the parts of one that are used.

    Raises:
        TypeError: it has not.
    """
    missing = [part for part in parts if not hasattr(value, part)]
    if missing:
        raise TypeError(
            f"`{name}` must be a TimingProfile, or have all that is used of one. Received: "
            f"{brief(value)} without {missing[0]}. Measure one with elastic_tf.profile_model, or "
            "read one with elastic_tf.TimingProfile.load."
        )
    return value


def elastic(model: Any, *, compiled: bool = False) -> Any:
    """An elastic model.

    Args:
        model: what was given for the argument.
        compiled: whether it must be.

    Raises:
        TypeError: it is none.
        ValueError: it is not compiled.
    """
    # of the class, for a model that was never called cannot tell its tensors yet
    if any(not hasattr(type(model), part) for part in ("tensors", "set_mask")):
        raise TypeError(
            f"`model` must be an elastic model. Received: {type(model).__name__}: {brief(model)}. "
            "Make one with elastic_tf.ElasticModel.from_model(model)."
        )
    if compiled and getattr(model, "optimizer", None) is None:
        raise ValueError(
            f"`model` must be compiled. Received: model '{model.name}' without an optimizer. Call "
            "model.compile(optimizer=..., loss=...)."
        )
    return model

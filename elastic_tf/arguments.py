"""What functions refuse: one rule for each kind of argument, said with the name and the value.

Every function returns the argument in the form that is used, and leaves the argument as it is. What
is anything else raises a `TypeError` or `ValueError`; `hint` is its last sentence, on the way out.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, NoReturn

import numpy as np

MOST = 10**9  # of anything that is counted
_MOST_SHOWN = 120  # characters of a value in a message
_LARGEST = 1e308
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def brief(value: Any) -> str:
    """A value as a message shows it: in one line, and its beginning, if it is long."""
    text = re.sub(r"\s*\n\s*", " ", repr(value))
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def nearest(text: str, known: Collection[str]) -> str:
    """The one of the known texts that may have been meant; empty if none is near."""
    return next(iter(difflib.get_close_matches(text, known, 1)), "")


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
    """A finite number from `low` to `high`; with `above` and `below` not these themselves."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    # An integer may be too large for a float.
    fits = real and low <= value <= high and abs(value) <= _LARGEST
    if not fits or (above and value == low) or (below and value == high):
        ends = _range(low, high, above=above, below=below)
        rule = ", ".join(filter(None, ("a finite number", ends)))
        _refuse(name, rule, f"{name}={brief(value)}", hint)
    return float(value)


#: A share of the step time to train in.
rho = partial(number, low=0.0, above=True, high=1.0, hint="Use 0.5 to halve the step time.")
#: A share of something that is not all of it.
part = partial(number, low=0.0, high=1.0, below=True)
#: A width multiplier of a network.
width = partial(number, low=0.0, high=4.0, above=True)
#: A learning rate.
rate = partial(number, low=0.0)


def count(name: str, value: Any, *, least: int = 1, most: int = MOST, hint: str = "") -> int:
    """An integer from `least` to `most`."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        is_large = whole and value > most
        rule = f"from {least} to {most}" if is_large else f"of at least {least}"
        _refuse(name, f"an integer {rule}", brief(value), hint)
    return int(value)


def memory(name: str, value: Any) -> int:
    """Bytes: an integer of at least 1, or a text like "256 MiB"."""
    text = value if isinstance(value, str) else ""
    found = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?) *([KMG]iB)?", text)
    size = int(float(found[1]) * _UNITS[found[2] or ""]) if found else value
    whole = isinstance(size, Integral) and not isinstance(size, bool)
    if not whole or not 1 <= size < 2**60:
        rule = "bytes, or a text with KiB, MiB or GiB, below 1 EiB"
        _refuse(name, rule, f"{name}={brief(value)}", "Use '256 MiB'.")
    return int(size)


def choice(name: str, value: Any, choices: Collection[str]) -> str:
    """One of some texts."""
    if not isinstance(value, str) or value not in choices:
        near = nearest(str(value), choices)
        hint = f"Did you mean {near!r}?" if near else ""
        _refuse(name, f"one of {', '.join(choices)}", f"{name}={brief(value)}", hint)
    return value


def path(name: str, value: Any) -> str:
    """A path, as text."""
    found: str = os.fspath(value)
    if not found:
        _refuse(name, "the path of a file", f"{name}={found!r}")
    return found


def file(name: str, value: Any, what: str) -> str:
    """The path of a file that is there."""
    found = path(name, value)
    if not os.path.isfile(found):
        is_what = "is no file" if os.path.exists(found) else "is not there"
        _refuse(name, what, f"'{found}', which {is_what}", error=FileNotFoundError)
    return found


def numbers(
    name: str,
    values: Any,
    *,
    size: int | None = None,
    low: float = -math.inf,
    high: float = math.inf,
    hint: str = "",
) -> np.ndarray:
    """So many finite numbers from `low` to `high`, or any number of them; a new float64 array."""
    found = array(name, values)
    if found.ndim != 1 or found.dtype.kind not in "iuf" or size not in (None, len(found)):
        said = f"({'n' if size is None else size},)"
        _refuse(name, f"numbers of shape {said}", _kind(found, values), hint)
    result = found.astype(np.float64)
    wrong = ~(np.isfinite(result) & (result >= low) & (result <= high))
    if wrong.any():
        first = int(wrong.argmax())
        rule = " and ".join(filter(None, ("finite", _range(low, high))))
        _refuse(name, rule, f"{result[first]} at {name}[{first}]", hint)
    return result


def mask(name: str, values: Any, size: int, *, hint: str = "") -> np.ndarray:
    """One bool for each tensor, as a new array."""
    found = array(name, values)
    if found.dtype != np.bool_ or found.shape != (size,):
        _refuse(name, f"a bool array of shape ({size},)", _kind(found, values), hint)
    return found.copy()


def array(name: str, values: Any) -> np.ndarray:
    """An array of what is given."""
    try:
        return np.asarray(values)
    except ValueError:
        _refuse(name, "an array", f"rows of different lengths: {brief(values)}")


def samples(name: str, values: Any) -> np.ndarray:
    """An array of numbers or texts, samples first."""
    found = array(name, values)
    if found.dtype == object and found.ndim and all(isinstance(one, str) for one in found.flat):
        return found.astype(np.str_)
    if values is None:
        _refuse(name, "arrays with samples first", "none")
    if found.ndim == 0 or found.dtype.kind not in "biufSU":
        hint = "" if found.ndim else f"A single sample is `np.asarray({name})[None]`."
        _refuse(name, "arrays with samples first", _kind(found, values), hint)
    return found


def numbered(labels: np.ndarray) -> None:
    """Refuse names of classes."""
    if labels.dtype.kind in "OSU":
        raise ValueError(
            f"Classes must be numbers. Received: {brief(labels)}. Number their names: "
            "names, y = np.unique(y, return_inverse=True)."
        )


def items(name: str, values: Any, *, what: str = "a sequence") -> list[Any]:
    """The elements of a sequence that is no text."""
    is_list = isinstance(values, Sequence) and not isinstance(values, (str, bytes))
    if not is_list and not (isinstance(values, np.ndarray) and values.ndim):
        _refuse(name, what, f"{name}={brief(values)}", error=TypeError)
    return list(values)


def instance(name: str, value: Any, kind: Any, what: str, hint: str = "") -> Any:
    """An object of a class, or of one of several."""
    if not isinstance(value, kind):
        received = f"{brief(value)} of type {type(value).__name__}"
        _refuse(name, what, received, hint, error=TypeError)
    return value


def elastic(model: Any, *, compiled: bool = False) -> Any:
    """An elastic model, which must be compiled if `compiled`."""
    # of the class, for a model that was never called cannot tell its tensors yet
    if any(not hasattr(type(model), part) for part in ("tensors", "set_mask")):
        hint = "Make one with elastic_tf.ElasticModel.from_model(model)."
        received = f"{type(model).__name__}: {brief(model)}"
        _refuse("model", "an elastic model", received, hint, error=TypeError)
    if compiled and getattr(model, "optimizer", None) is None:
        received = f"model '{model.name}' without an optimizer"
        _refuse("model", "compiled", received, "Call model.compile(optimizer=..., loss=...).")
    return model


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Let imports inside of it that fail say, by an ImportError, which extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"This needs a package that is not installed. Received: {error}. Install it: "
            f'pip install "elastic_tf[{name}]", or pip install ".[{name}]" in the checkout.',
            name=error.name,
        ) from error


def _refuse(
    name: str, rule: str, received: str, hint: str = "", *, error: type[Exception] = ValueError
) -> NoReturn:
    raise error(f"`{name}` must be {rule}. Received: {received}. {hint}".strip()) from None


def _kind(found: np.ndarray, values: Any) -> str:
    return f"{found.dtype} of shape {found.shape}: {brief(values)}"


def _range(low: float, high: float, *, above: bool = False, below: bool = False) -> str:
    """Both ends in words; nothing where there are none."""
    left = "" if low == -math.inf else f"{'above' if above else 'at least'} {low:g}"
    right = "" if high == math.inf else f"{'below' if below else 'at most'} {high:g}"
    return " and ".join(filter(None, (left, right)))

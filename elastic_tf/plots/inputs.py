"""What pictures refuse to draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief

_MOST = 1e100  # that an axis can be stretched to


def captions(**texts: Any) -> None:
    """Refuse words that are no texts; each by its name."""
    for name, value in texts.items():
        arguments.text(name, value)


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """What is drawn for each label; at least one.

    Raises:
        TypeError: it is no mapping of texts.
        ValueError: it is empty.
    """
    if not isinstance(value, Mapping) or not all(isinstance(label, str) for label in value):
        raise TypeError(f"`{name}` must be a mapping from labels. Received: {name}={brief(value)}.")
    if not value:
        raise ValueError(f"`{name}` must hold something to draw. Received: {name}={brief(value)}.")
    return value


def values(name: str, given: Any, size: int | None = None, *, finite: bool = True) -> np.ndarray:
    """Numbers along an axis.

    Raises:
        ValueError: they are none, or too few or too many.
    """
    high = _MOST if finite else np.inf
    return arguments.numbers(name, given, shape=(size,), low=-high, high=high, finite=finite)


def pairs(
    name: str, given: Any, *, finite: bool = True
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Values along x and along y, for each label.

    Raises:
        TypeError: it is no mapping of pairs.
        ValueError: values are no numbers, or not equally many.
    """
    found = {}
    for label, pair in mapping(name, given).items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                f"`{name}` must hold (values along x, values along y). Received: {brief(pair)}."
            )
        x = values(name, pair[0])
        found[label] = (x, values(name, pair[1], len(x), finite=finite))
        if not len(x):
            raise ValueError(f"`{name}` must hold points to draw. Received: {brief(pair)}.")
    return found


def rows(name: str, given: Any, *, texts: tuple[str, ...], numbers: tuple[str, ...]) -> list[Any]:
    """Mappings with certain keys; a number may be None.

    Raises:
        TypeError: they are none.
        ValueError: one lacks a key, or holds something else there.
    """
    found = arguments.items(name, given, least=1, what="a list of rows")
    for row in found:
        arguments.instance(name, row, Mapping, "a list of rows")
        for key in (*texts, *numbers):
            if key not in row:
                raise ValueError(
                    f"`{name}` must have '{key}' in each row. Received: {brief(row)} without "
                    f"'{key}'."
                )
        for key in texts:
            arguments.text(f"{name}: {key}", row[key])
        for key in numbers:
            if row[key] is not None:
                arguments.number(f"{name}: {key}", row[key], low=-_MOST, high=_MOST)
    return found


def names(name: str, given: Any, size: int | None = None) -> list[str]:
    """Names of tensors; none, or one for each.

    Raises:
        TypeError: they are no texts.
        ValueError: they are too few or too many.
    """
    found = arguments.items(name, given, what="a list of names")
    for text in found:
        arguments.text(name, text)
    if size is not None and found and len(found) != size:
        raise ValueError(
            f"`{name}` must be {size}, one for each tensor. Received: {len(found)}: {brief(given)}."
        )
    return found

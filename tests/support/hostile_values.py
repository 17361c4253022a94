"""Values that do not belong where they are given, by the kind of argument, and what is to be said.

A kind is a function of the valid argument: it makes the hostile ones anew, for a function under
test may change them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

HUGE = 10**400
_SHOWN = 40  # characters of a value that a message must show
Kind = Callable[[Any], Iterator[Any]]


class Strange:
    """Something that no function expects."""


def _anything() -> Iterator[Any]:
    yield from (Strange(), [], {}, (), b"1", {1}, repr)


def number(valid: Any) -> Iterator[Any]:
    yield from (float("nan"), float("inf"), -float("inf"), -1, -0.5, HUGE, -HUGE, 1e308)
    yield from (True, None, "0.5", 1j, [0.5], np.array([0.5]), np.array(0.5))
    yield from _anything()


def count(valid: Any) -> Iterator[Any]:
    yield from (0, -1, 2.5, float("nan"), float("inf"), HUGE, -HUGE, True, None, "3", [3])
    yield from (np.array([3]), np.float64(3))
    yield from _anything()


def flag(valid: Any) -> Iterator[Any]:
    yield from (None, 2, 0.5, "no", "", float("nan"), np.array([True, False]))
    yield from _anything()


def text(valid: Any) -> Iterator[Any]:
    yield from (None, 3, 0.5, True, np.array(["a"]), "no such name", "")
    yield from _anything()


def path(valid: Any) -> Iterator[Any]:
    yield from (None, 3, 0.5, True, "", "a\0b", "x" * 5000, os.devnull + "/x", "no/such/file")
    yield from _anything()


def numbers(valid: Any) -> Iterator[Any]:
    """Instead of numbers, one for each tensor, sample or point."""
    good = np.asarray(valid, np.float64)
    yield from (
        good[:0],
        good[:-1],
        np.concatenate([good, good]),
        good[None],
        good[:, None],
        good[0],
    )
    for value in (np.nan, np.inf, -np.inf, -1.0, 1e308, 0.0):
        wrong = good.copy()
        wrong[-1] = value
        yield wrong
        yield np.full_like(good, value)
    yield from (good[::-1], good.astype(np.float32), np.arange(len(good)), good > 0)
    yield from (good + 1j, good.astype(str), good.astype(object), [HUGE] * len(good))
    yield from (None, "abc", 3, [[1.0], [1.0, 2.0]], [None] * len(good), ["a"] * len(good))
    yield np.array(["2020-01-01"] * len(good), "datetime64[D]")
    yield from _anything()


def mask(valid: Any) -> Iterator[Any]:
    good = np.asarray(valid, bool)
    yield from (good[:0], good[:-1], np.concatenate([good, good]), good[None], good[0], ~good)
    yield from (np.zeros_like(good), np.ones_like(good), good.astype(int), good.astype(float))
    yield from (good.astype(str), good.astype(object), list(good), np.flatnonzero(good))
    yield from (None, True, 3, "all", [[True], [True, False]], [None] * len(good))
    yield from _anything()


def samples(valid: Any) -> Iterator[Any]:
    """Instead of a batch, or one part of it."""
    good = np.asarray(valid)
    # Few, for what is accepted is traced and run.
    yield from (good[:0], good[:-1], good[None], good.astype(object), np.full(good.shape, np.nan))
    yield from (np.full(good.shape, "a"), None, 3, [[1.0], [1.0, 2.0]], Strange(), {})


def thing(valid: Any) -> Iterator[Any]:
    """Instead of a model, a profile, a figure, an optimizer."""
    yield from (None, 3, float("nan"), "model", np.zeros(3))
    yield from _anything()


def function(valid: Any) -> Iterator[Any]:
    yield from (None, 3, 0.5, True, "loss_decrease", np.zeros(3))
    yield from (item for item in _anything() if not callable(item))


def listed(valid: Any) -> Iterator[Any]:
    """Instead of a list or a mapping."""
    yield from (None, 3, float("nan"), "abc", np.zeros(()), [None], [[]], [Strange()], [3.5])
    yield from ({"a": None}, {"a": []}, {3: 4}, {"a": {"b": "c"}}, {"a": ([1.0], [1.0, 2.0])})
    yield from ({"a": ([np.nan], [1e308])}, [{}], [{"method": 3}], [("a", [])], ["a", 3])
    yield from _anything()


GENERATED: dict[Kind, st.SearchStrategy[Any]] = {
    number: st.one_of(st.floats(), st.integers(), st.text(max_size=3), st.booleans()),
    count: st.one_of(st.integers(max_value=3), st.integers(min_value=10**15), st.floats()),
    text: st.one_of(st.text(max_size=5), st.integers(), st.floats()),
    numbers: arrays.arrays(
        st.sampled_from([np.float64, np.float32, np.int64, np.uint8, np.bool_, np.complex128]),
        arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=6),
    ),
    mask: arrays.arrays(
        st.sampled_from([np.bool_, np.int64, np.float64]),
        arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=6),
    ),
}


def is_said(message: str, value: Any) -> bool:
    """Whether a message tells which value was received: neither its rule nor its way out counts."""
    received = re.split(r"\. (?=[A-Z])", message.partition("Received")[2])[0]
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        found = re.findall(r"(?<![\w.])-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf)(?!\w)", received)
        if any(float(number) == value for number in found):
            return True
    return any(_stands_in(received, token) for token in _tokens(value))


def _stands_in(text: str, token: str) -> bool:
    """Whether it does, and not as a part of another word or number; a long one may be cut off."""
    end = r"(?!\w|\.\d)" if len(token) <= _SHOWN else ""
    return re.search(rf"(?<![\w.]){re.escape(token[:_SHOWN])}{end}", text) is not None


def _tokens(value: Any) -> Iterator[str]:
    """Any of these says the value: itself, a part that is wrong, its dtype or its shape."""
    yield repr(value)
    if isinstance(value, str):
        yield f"'{value}'"  # of a path, without escapes
        return
    if isinstance(value, np.ndarray):
        yield str(value.dtype)
    if callable(value):
        yield "from the schedule"  # what it gave is what was received
    try:
        yield str(np.shape(value))
        yield from (repr(item) for item in np.ravel(value)[-3:].tolist())
    except (ValueError, TypeError):  # rows of different lengths
        yield "different lengths"
    if isinstance(value, (list, tuple, set)):
        yield repr(list(value))
        for item in value:
            yield from _tokens(item)
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _tokens(key)
            yield from _tokens(item)

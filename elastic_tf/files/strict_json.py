"""JSON that anybody may have written: parsed within limits, refused where it says two things.

Python's reader takes NaN, lets the last of two equal keys win, and reads as much as there is.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from elastic_tf.arguments import brief

MOST_BYTES = 4 << 20  # of one document; the profile of a model of 1,000 tensors takes 0.4 MB
_MOST_DEPTH = 50
_MOST_DIGITS = 40  # 2**127 has 39
# What too long an integer and too large a number have in them; texts may have it too.
_LONG = re.compile(rf"[0-9]{{{_MOST_DIGITS + 1}}}|[eE][+]?[0-9]{{3}}")
# Texts in quotes, the last one perhaps without an end. It never goes back, so that the time it
# takes grows as the text does.
_QUOTED = re.compile(r'"(?:[^"\\]+|\\.?)*(?:"|\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse(data: bytes) -> Any:
    """The value that `data`, UTF-8, stands for.

    Raises:
        ValueError: it is not JSON, or not JSON alone: NaN, a key that stands there twice, a number
            that no float64 holds, half a character; or it is nested too deeply. The text ends the
            sentence that begins with the path.
    """
    try:
        text = data.decode("utf-8")
        _check_depth(text)
        # Python's own way with numbers is twice as fast, and right where none is that long.
        numbers: dict[str, Any] = (
            {"parse_int": _integer, "parse_float": _real} if _LONG.search(text) else {}
        )
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, **numbers)
        if re.search(r"\\u[dD][89a-fA-F]", text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("holds half of a surrogate pair, which is no character") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"is no JSON: {error}") from error
    return value


def _check_depth(text: str) -> None:
    outside = _QUOTED.sub("", text).encode(errors="replace")
    brackets = np.frombuffer(outside.translate(None, _NOT_BRACKETS), np.uint8)
    opens = (brackets == ord("[")) | (brackets == ord("{"))
    deepest = int(np.cumsum(np.where(opens, 1, -1)).max(initial=0))
    if deepest > _MOST_DEPTH:
        raise ValueError(f"is nested {deepest} deep, more than {_MOST_DEPTH}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"holds the key {brief(key)} twice in one object")
        made[key] = value
    return made


def _constant(text: str) -> Any:
    raise ValueError(f"holds {text}, which is no JSON number")


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"holds an integer of {len(text)} digits, more than {_MOST_DIGITS}")
    return int(text)


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"holds {brief(text)}, which is no finite number")
    return value

"""Hostile bytes and JSON made from valid ones, by a seeded generator."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

TOKENS = (
    *(b"NaN", b"-Infinity", b"1e999", b"-1e-999", b"0x10", b"01", b"null", b"true", b"[]", b"{}"),
    *(b"9" * 30, b"9" * 5000, b"-" + b"9" * 400, b"1." + b"0" * 2000 + b"1", b"1e15", b"-0"),
    *(b"[" * 60, b"[" * 5000, b'{"a":' * 3000, b"]" * 40, b'"\\ud800"', b'"\\udc00\\ud800"'),
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r\n", b"\n", b"\x1b[2J", b"//"),
    *(b'"' + b"A" * 10_000 + b'"', b'"../../../etc/passwd"', b'"\\u0000"', b'"count":3,', b"\\"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 2**31, 2**63, 2**64, 10**39, 1e15, 1e308, -1e308, 5e-324),
    *(0.5, -0.5, "", "x", "1", "NaN", "/etc/passwd", "../x", "a\x00b", "é\U0001f600", "A" * 5000),
    *([], {}, [[]], [None], [0], [[0, 0]], [[0, 99_999]], [[1, 0]], [[0, 2], [1, 3]], [[0.0, 1.0]]),
    *([[0, 1, 2]], [["0", "1"]], [True, False], [1.0] * 3, [1.0] * 5000, [[0, 0]] * 500, {"a": 1}),
    *({"name": []}, {"tensors": [[0, 0]], "time": 1.0}, [{"tensors": [[0, 0]], "time": 1e308}] * 3),
)


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """A few changes of bytes: flips, cuts, copies, tokens put in."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        place = rng.randrange(len(changed) + 1)
        end = min(len(changed), place + rng.choice((1, 2, 5, 20, 200)))
        kind = rng.randrange(7)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[place:end]
        elif kind == 2:
            changed[place:place] = changed[place:end]
        elif kind == 3:
            changed[place:place] = rng.choice(TOKENS)
        elif kind == 4:
            changed[place:end] = rng.choice(TOKENS)
        elif kind == 5:
            del changed[place:]
        elif kind == 6:
            changed[place:end] = rng.randbytes(end - place)
    return bytes(changed)


def mutated_json(data: bytes, rng: random.Random) -> bytes:
    """Values replaced, removed, moved, nested or named twice, in JSON that stays JSON."""
    root = [json.loads(data)]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        holder, key = rng.choice(_places(root))
        kind = rng.randrange(6)
        if kind == 0 and holder is not root:
            del holder[key]
        elif kind == 1:
            holder[key] = copy.deepcopy(rng.choice([h[k] for h, k in _places(root)]))
        elif kind == 2:
            for _ in range(rng.choice((1, 5, 60))):
                holder[key] = [holder[key]]
        elif kind == 3 and isinstance(holder, list):
            holder[key:key] = [copy.deepcopy(holder[key])] * rng.choice((1, 3, 1000))
        else:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
    text = json.dumps(root[0])
    if rng.random() < 0.1 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + ", " + text[1:]  # every key twice
    return text.encode()


def _places(root: list[Any]) -> list[tuple[Any, Any]]:
    """Every holder of a value, and its key there, down to some depth."""
    found: list[tuple[Any, Any]] = []
    level: list[Any] = [root]
    for _ in range(6):
        pairs = [
            (holder, key)
            for holder in level
            for key in (holder if isinstance(holder, dict) else range(min(len(holder), 50)))
        ]
        found += pairs
        level = [holder[key] for holder, key in pairs if isinstance(holder[key], (dict, list))]
    return found

"""The update of tensors by an optimizer, in NumPy and in place, as Keras computes it.

An array is passed over in parts that stay in the processor's cache: over whole arrays, each of a
dozen operations would fetch them from memory again. Threads share the parts: NumPy lets others run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

_POOL = ThreadPoolExecutor()  # starts threads where they are asked for, and keeps them
_PART = 65536  # elements; half and twice as many take the same time


def slots(told: Mapping[str, Any]) -> int:
    """How many arrays of a tensor's shape the optimizer keeps for it, zeros at first."""
    return 2 if "beta_1" in told else int(bool(told["momentum"]))


def update(
    told: Mapping[str, Any],
    rate: float,
    tensors: Iterable[tuple[int, Sequence[np.ndarray]]],
    threads: int,
) -> None:
    """Change tensors and their slots.

    Args:
        told: beta_1, beta_2 and epsilon of Adam; or momentum, nesterov and decay of SGD.
        tensors: updates of each, this one among them, from 1; the tensor, its gradient, and its
            slots, float32 of one shape.
        threads: at most; fewer for few numbers.
    """
    rule = _adam if "beta_1" in told else _sgd
    parts = [
        (step, [one.reshape(-1)[start : start + _PART] for one in arrays])
        for step, arrays in tensors
        for start in range(0, arrays[0].size, _PART)
    ]
    sizes = [arrays[0].size for _, arrays in parts]
    parts = [parts[k] for k in np.argsort(sizes)]
    threads = max(min(threads, sum(sizes) // _PART), 1)

    def share(k: int) -> None:
        for step, arrays in parts[k::threads]:
            rule(told, rate, step, *arrays)

    others = [_POOL.submit(share, k) for k in range(1, threads)]
    share(0)
    for one in others:
        one.result()


def _adam(told: Mapping[str, Any], rate: float, step: int, *arrays: np.ndarray) -> None:
    """The slots are sums, which lack Adam's factors 1 - beta: two passes fewer.

    Source: Kingma & Ba, Adam, ICLR 2015, Algorithm 1, each tensor with its own step count.
    """
    value, gradient, first, second = arrays
    beta_1, beta_2 = told["beta_1"], told["beta_2"]
    scale = (1.0 - beta_2) ** 0.5
    rate *= (1.0 - beta_1) / scale * (1.0 - beta_2**step) ** 0.5 / (1.0 - beta_1**step)
    first *= np.float32(beta_1)
    first += gradient
    second *= np.float32(beta_2)
    moved = gradient * gradient
    second += moved
    np.sqrt(second, out=moved)
    moved += np.float32(told["epsilon"] / scale)
    np.divide(first, moved, out=moved)
    moved *= np.float32(rate)
    value -= moved


def _sgd(told: Mapping[str, Any], rate: float, step: int, *arrays: np.ndarray) -> None:
    value, gradient, *speeds = arrays  # one, with momentum
    if told["decay"]:
        value *= np.float32(1.0 - told["decay"])
    moved: np.ndarray = gradient * np.float32(-rate)
    for speed in speeds:
        speed *= np.float32(told["momentum"])
        speed += moved
        moved = moved + np.float32(told["momentum"]) * speed if told["nesterov"] else speed
    value += moved

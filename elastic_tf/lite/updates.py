"""The update of one tensor by an optimizer, in NumPy and in place, as Keras computes it.

An array is passed over in parts that stay in the processor's cache: over whole arrays, each of a
dozen operations would fetch them from memory again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_PART = 65536  # elements; half and twice as many take the same time


def slots(told: Mapping[str, Any]) -> int:
    """How many arrays of a tensor's shape the optimizer keeps for it, zeros at first."""
    return 2 if "beta_1" in told else int(bool(told["momentum"]))


def update(told: Mapping[str, Any], arrays: Sequence[np.ndarray], rate: float, step: int) -> None:
    """Change a tensor and its slots.

    Args:
        told: beta_1, beta_2 and epsilon of Adam; or momentum, nesterov and decay of SGD.
        arrays: the tensor, its gradient, and its slots; float32 of one shape.
        step: updates of this tensor, this one among them; from 1.
    """
    rule = _adam if "beta_1" in told else _sgd
    flat = [one.reshape(-1) for one in arrays]
    for start in range(0, flat[0].size, _PART):
        rule(told, rate, step, *(one[start : start + _PART] for one in flat))


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
    moved = gradient * np.float32(-rate)
    for speed in speeds:
        speed *= np.float32(told["momentum"])
        speed += moved
        moved = moved + np.float32(told["momentum"]) * speed if told["nesterov"] else speed
    value += moved

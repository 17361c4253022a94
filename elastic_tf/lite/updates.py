"""The update of tensors by an optimizer, in NumPy and in place, as Keras computes it.

An array is passed over in parts that stay in the processor's cache: over whole arrays, each of a
dozen operations would fetch them from memory again. Threads share the parts: NumPy lets others run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

EVERY = 10  # steps from one root of a matrix to the next
DAMPING = 1e-4  # of a bound of the largest eigenvalue
ITERATIONS = 5
# Root mean squares of kernels: from the second one on, an update is as large as the rate; between
# both it is the same share of its kernel. One of zeros moves, too.
SIZES = (0.02, 0.05)
QUINTIC = (3.4445, -4.7750, 2.0315)  # Jordan et al., Muon, 2024
_POOL = ThreadPoolExecutor()  # starts threads where they are asked for, and keeps them
_PART = 65536  # elements; half and twice as many take the same time


def slots(told: Mapping[str, Any], index: int, value: np.ndarray) -> list[np.ndarray]:
    """What the optimizer keeps for a tensor, as it is before the first step."""
    matrix = told.get("matrices", {}).get(str(index))
    if matrix is None:
        count = 2 if "beta_1" in told else int(bool(told["momentum"]))
        return [np.zeros_like(value) for _ in range(count)]
    blocks, each = matrix["blocks"]
    units = np.tile(np.eye(each, dtype=value.dtype), (blocks, 1, 1))
    return [np.zeros_like(value), np.zeros_like(units), units]


def update(
    told: Mapping[str, Any],
    rate: float,
    tensors: Iterable[tuple[int, int, Sequence[np.ndarray]]],
    threads: int,
) -> None:
    """Change tensors and their slots.

    Args:
        told: beta_1, beta_2 and epsilon of Adam, with Shampoo's momentum and memory, and its
            matrices by the tensor's number; or momentum, nesterov and decay of SGD.
        tensors: number of each; its updates, this one among them, from 1; the tensor, its gradient,
            and its slots, float32.
        threads: at most; fewer for few numbers.
    """
    rule = _adam if "beta_1" in told else _sgd
    parts = []
    for index, step, arrays in tensors:
        matrix = told.get("matrices", {}).get(str(index))
        if matrix is not None:
            _whiten(told, matrix, rate, step, *arrays)
            continue
        for start in range(0, arrays[0].size, _PART):
            parts.append((step, [one.reshape(-1)[start : start + _PART] for one in arrays]))
    parts.sort(key=lambda part: part[1][0].size)
    threads = max(min(threads, sum(arrays[0].size for _, arrays in parts) // _PART), 1)

    def share(k: int) -> None:
        for step, arrays in parts[k::threads]:
            rule(told, rate, step, *arrays)

    list(_POOL.map(share, range(threads)))  # raises what one of them raised


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


def _whiten(
    told: Mapping[str, Any], matrix: Mapping[str, Any], rate: float, step: int, *arrays: np.ndarray
) -> None:
    """Shampoo, as `elastic_tf.train.optimizers.shampoo` describes it; BLAS shares out the work."""
    value, gradient, momentum, gram, root = arrays
    blocks, each = matrix["blocks"]
    spare = blocks * each - matrix["rows"]

    def in_blocks(values: np.ndarray) -> np.ndarray:
        rows = np.pad(values.reshape(matrix["rows"], -1), ((0, spare), (0, 0)))
        return rows.reshape(blocks, each, -1)

    momentum *= np.float32(told["momentum"])
    momentum += gradient
    rows = in_blocks(gradient)
    gram *= np.float32(told["memory"])
    gram += np.float32(1.0 - told["memory"]) * (rows @ rows.swapaxes(1, 2))
    if step == 1 or (step - 1) % EVERY == matrix["turn"]:
        root[...] = _inverse_root(gram)
    moved = root @ in_blocks(gradient + np.float32(told["momentum"]) * momentum)
    moved = moved.reshape(blocks * each, -1)[: matrix["rows"]]
    size, own = (math.sqrt(float(np.mean(np.square(one)))) for one in (moved, value))
    if size > 0.0:
        rate *= min(max(own, SIZES[0]), SIZES[1]) / SIZES[1]
        value -= (np.float32(rate / size) * moved).reshape(value.shape)


def _inverse_root(grams: np.ndarray) -> np.ndarray:
    """S^(-1/2) of each, up to a common factor, as `elastic_tf.train.optimizers.shampoo` has it."""
    unit = np.eye(grams.shape[-1], dtype=grams.dtype)
    bound = np.sqrt(np.square(grams).sum((-2, -1), keepdims=True))
    bound[bound <= 0.0] = 1.0
    rest, found = (grams / bound + DAMPING * unit) / (1.0 + DAMPING), unit
    for _ in range(ITERATIONS):
        both = found @ rest
        polynomial = QUINTIC[0] * unit + QUINTIC[1] * both + QUINTIC[2] * both @ both
        rest, found = rest @ polynomial, polynomial @ found
    return found / np.sqrt(bound)

"""The backward pass inside the graph of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from elastic_tf.graph import reach, takes

_BATCH = 32  # Keras's own, where the size is not known when a step is traced
_LARGE = 64  # bytes; scalars and the like have fewer


def values(gradients: Sequence[Any]) -> list[tf.Tensor | None]:
    """What holds the numbers of each gradient."""
    return [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]


def places(loss: tf.Tensor, gradients: Sequence[Any]) -> dict[tf.Operation, int]:
    """The ops between a loss and its gradients, with their number in the order of tracing.

    Without those that are computed again, which are traced after them.
    """
    number = {op: k for k, op in enumerate(loss.graph.get_operations())}
    ends = [tensor.op for tensor in values(gradients) if tensor is not None]
    first, last = number[loss.op], max(map(number.__getitem__, ends), default=0)

    def between(ops: list[tf.Operation]) -> list[tf.Operation]:
        return [op for op in ops if first < number[op] <= last]

    found = reach(between(ends), lambda op: between(takes(op)))
    return {op: number[op] for op in sorted(found, key=number.__getitem__)}


def size(tensor: tf.Tensor) -> int:
    """Bytes of a tensor; 0 of handles and of what has no known rank."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or tensor.shape.rank is None:
        return 0
    lengths = (_BATCH if length is None else length for length in tensor.shape)
    return math.prod(lengths, start=tensor.dtype.size)


def is_large(tensor: tf.Tensor) -> bool:
    """Whether a tensor has the error of samples, not of a scalar."""
    return size(tensor) >= _LARGE

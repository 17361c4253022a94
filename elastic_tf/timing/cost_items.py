"""Cost items: what a training step pays for, and the choices that make it pay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.plan import EXACT, NAMES

KINDS = ("forward", "dw", "dy")
MAX_TIME = 1e15  # microseconds: thirty years

Condition = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class CostItem:
    """Work of a step that is paid for if at least one of some choices is made.

    Attributes:
        condition: the choices, pairs of a tensor and a mode, ascending.
        layer: name of the layer that the work belongs to; empty where nobody knows.
        kind: "dw" for work that one tensor needs: its weight gradient and its update; "dy" for
            backward work that several tensors need; "forward" for work of the forward pass.
        time: microseconds per step.
        bytes: memory that it takes meanwhile.
    """

    condition: Condition
    layer: str
    kind: str
    time: float
    bytes: int = 0

    @classmethod
    def of(
        cls, tensors: Iterable[int], time: float, *, layer: str = "", kind: str | None = None
    ) -> CostItem:
        """Work that runs when at least one of `tensors`, ascending, is trained exactly.

        Without a `kind` it is "dw" of one tensor and "dy" of several.
        """
        condition = tuple((int(k), EXACT) for k in tensors)
        return cls(condition, layer, kind or ("dw" if len(condition) == 1 else "dy"), float(time))

    @property
    def tensors(self) -> tuple[int, ...]:
        """Indices of the tensors of the condition, ascending."""
        return tuple(dict.fromkeys(k for k, _ in self.condition))


def check_items(name: str, items: Sequence[CostItem], count: int) -> None:
    """Refuse work that no step of `count` tensors can have.

    Raises:
        ValueError: a time, a kind or a condition is out of range; the item is named.
    """
    for place, item in enumerate(items):
        where = f"{name}[{place}]"
        arguments.number(f"{where}.time", item.time, low=0.0, high=MAX_TIME)
        arguments.count(f"{where}.bytes", item.bytes, least=0, most=2**60)
        arguments.choice(f"{where}.kind", item.kind, KINDS)
        pairs = np.array(item.condition)
        if (
            pairs.shape[1:] != (2,)
            or pairs.dtype.kind not in "iu"
            or not (0 <= pairs[0, 0] and pairs[-1, 0] < count and set(pairs[:, 1]) <= set(NAMES))
            or not (np.diff(pairs[:, 0] * len(NAMES) + pairs[:, 1]) > 0).all()
        ):
            raise ValueError(
                f"`{where}.condition` must be pairs of a tensor below {count} and a mode, "
                f"ascending. Received: {brief(item.condition)}."
            )


def as_arrays(items: Sequence[CostItem], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of `count` tensors each item is paid for, bool (S, N), and its microseconds, (S,)."""
    members = np.zeros((len(items), count), bool)
    for row, item in zip(members, items):
        row[list(item.tensors)] = True
    return members, np.array([item.time for item in items], np.float64)

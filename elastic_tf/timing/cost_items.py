"""Cost items: what a training step pays for, and the tensors that make it pay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from elastic_tf import arguments

KINDS = ("forward", "dw", "dy")
MAX_TIME = 1e15  # microseconds: thirty years


@dataclass(frozen=True)
class CostItem:
    """Work of a step that is paid for if at least one of some tensors is trained.

    Its kind is "dw" for work that one tensor needs: its weight gradient and its update; "dy" for
    backward work that several tensors need; "forward" for work of the forward pass.
    """

    tensors: tuple[int, ...]  #: their indices, ascending
    layer: str  #: name of the layer that the work belongs to; empty where nobody knows
    kind: str  #: one of `KINDS`
    time: float  #: microseconds per step

    @classmethod
    def of(
        cls, tensors: Iterable[int], time: float, *, layer: str = "", kind: str | None = None
    ) -> CostItem:
        """An item that is "dw" of one tensor and "dy" of several, unless it has a `kind`."""
        found = tuple(int(k) for k in tensors)
        return cls(found, layer, kind or ("dw" if len(found) == 1 else "dy"), float(time))


def check_items(name: str, items: Sequence[CostItem], count: int) -> None:
    """Refuse work that no step of `count` tensors can have; the `ValueError` names the item."""
    for place, item in enumerate(items):
        where = f"{name}[{place}]"
        arguments.number(f"{where}.time", item.time, low=0.0, high=MAX_TIME)
        arguments.choice(f"{where}.kind", item.kind, KINDS)
        if not item.tensors or not (np.diff([-1, *item.tensors, count]) > 0).all():
            raise ValueError(
                f"`{where}.tensors` must be indices from 0, ascending and below {count}. "
                f"Received: {arguments.brief(item.tensors)}."
            )


def as_arrays(items: Sequence[CostItem], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of `count` tensors each item is paid for, bool (S, N), and its microseconds, (S,)."""
    members = np.zeros((len(items), count), bool)
    for row, item in zip(members, items):
        row[list(item.tensors)] = True
    return members, np.array([item.time for item in items], np.float64)


def last_of(members: np.ndarray) -> np.ndarray:
    """The last tensor of each set in `members`, bool (S, N)."""
    return members.shape[1] - 1 - members[:, ::-1].argmax(axis=1)

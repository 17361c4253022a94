"""Cost items: what a training step pays for, and the tensors that make it pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elastic_tf import arguments

MAX_TIME = 1e15  # microseconds: thirty years


@dataclass(frozen=True)
class CostItem:
    """Work of a step that is paid for if at least one of some tensors is trained.

    Of one tensor: its weight gradient and its update. Of several: backward work that each of them
    needs, and what training one costs in the forward pass.
    """

    tensors: tuple[int, ...]  #: their indices, ascending
    time: float  #: microseconds per step


def check_items(name: str, items: Sequence[CostItem], count: int) -> None:
    """Refuse work that no step of `count` tensors can have; the `ValueError` names the item."""
    for place, item in enumerate(items):
        where = f"{name}[{place}]"
        arguments.number(f"{where}.time", item.time, low=0.0, high=MAX_TIME)
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

"""What the solver decides: choices with a worth, items with a cost, and room for the costs.

In short::

    maximise    sum of the worth of the choices made
    subject to  sum of the costs of the items of which a choice is made <= room, for each resource,
                at most one choice for each tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Solution(NamedTuple):
    """`chosen`, a bool for each choice, fits; nothing that fits is worth more than `bound`."""

    chosen: np.ndarray
    bound: float


class Choices(NamedTuple):
    """What can be chosen, and what that costs."""

    tensor: np.ndarray  #: (n,) the tensor of each choice, ascending
    member: np.ndarray  #: (S, n) bool, the choices that need each item
    #: (S, R) of the items, not negative; microseconds, and bytes where memory is limited.
    cost: np.ndarray

    def spent(self, chosen: np.ndarray) -> np.ndarray:
        """(R,) cost of the chosen ones; bool, shape (n,)."""
        return self.cost[np.asarray(self.member[:, chosen].any(axis=1))].sum(axis=0)


@dataclass(frozen=True, eq=False)
class Problem:
    """One choice for each tensor, of one resource; those left when the required are paid for."""

    index: np.ndarray  #: (n,) the choices among those that were given to `reduce`
    worth: np.ndarray  #: (n,) above 0, the largest 1
    own: np.ndarray  #: (n,) cost of the items that no other tensor needs; 1 is the whole budget
    member: np.ndarray  #: (S, n) 1.0 where a tensor needs an item, for the items that several need
    cost: np.ndarray  #: (S,) their costs
    room: float  #: 1, or 0 where nothing is left
    scale: float  #: one unit of worth

    def spent(self, chosen: np.ndarray) -> float:
        """Cost of the chosen ones; bool, shape (n,)."""
        return float(self.own @ chosen + self.cost @ (self.member @ chosen > 0.0))

    def filled(self, chosen: np.ndarray) -> np.ndarray:
        """`chosen` and further tensors, most worth per added cost first, while they fit."""
        chosen = chosen.copy()
        while True:
            left = self.room - self.spent(chosen)
            added = self.own + (self.cost * (self.member @ chosen == 0.0)) @ self.member
            new = np.flatnonzero(~chosen & (added <= left))
            if not len(new):
                return chosen
            new = new[np.argsort(-per_cost(self.worth[new], added[new]), kind="stable")]
            # together they add no more than the sum of what each adds alone: so many at once
            chosen[new[: max(1, int((np.cumsum(added[new]) <= left).sum()))]] = True


def per_cost(worth: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Worth per cost, shape (n,); infinite for what costs nothing."""
    return np.divide(worth, cost, out=np.full(len(worth), np.inf), where=cost > 0.0)


def reduce(choices: Choices, worth: np.ndarray, room: np.ndarray, required: np.ndarray) -> Problem:
    """The choice among what is worth more than 0 and fits, beside the required tensors.

    (n,) finite `worth`; (1,) `room`, at least the cost of the required ones, (n,) bool.
    """
    is_unpaid = ~np.asarray(choices.member[:, required].any(axis=1))
    left = float(room[0] - choices.cost[~is_unpaid].sum())
    member, cost = choices.member[is_unpaid], choices.cost[is_unpaid, 0]
    cost = cost / (left if left > 0.0 else 1.0)
    index = np.flatnonzero((worth > 0.0) & ~required & (cost @ member <= float(left > 0.0)))
    # items that the same tensors need are one
    packed = np.packbits(member[:, index], axis=1)
    rows, owner = np.unique(packed, axis=0, return_inverse=True)
    rows = np.unpackbits(rows, axis=1, count=len(index)).astype(np.float64)
    cost = np.bincount(owner.ravel(), cost, len(rows))
    common = rows.sum(axis=1) > 1.0
    scale = float(worth[index].max(initial=0.0))
    return Problem(
        index=index,
        worth=worth[index] / scale if len(index) else np.zeros(0),
        own=cost[~common] @ rows[~common],
        member=rows[common],
        cost=cost[common],
        room=float(left > 0.0),
        scale=scale,
    )

"""What the solver decides: tensors with a worth, items with a cost, and room for the costs.

In short::

    maximise    sum of the worth of the tensors chosen
    subject to  sum of the costs of the items that a chosen tensor needs <= room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True, eq=False)
class Problem:
    """The choice that is left when the required tensors are paid for.

    Attributes:
        index: (n,) the tensors among those that were given to `reduce`, ascending.
        worth: (n,) above 0, the largest 1.
        own: (n,) cost of the items that no other tensor needs; 1 is the whole budget.
        member: (S, n) 1.0 where a tensor needs an item, for the items that several need.
        cost: (S,) their costs.
        room: 1, or 0 where nothing is left.
        scale: one unit of worth.
    """

    index: np.ndarray
    worth: np.ndarray
    own: np.ndarray
    member: np.ndarray
    cost: np.ndarray
    room: float
    scale: float

    def spent(self, chosen: np.ndarray) -> float:
        """Cost of the chosen ones; bool, shape (n,)."""
        return float(chosen @ self.own + (self.member @ chosen > 0.0) @ self.cost)

    def added(self, chosen: np.ndarray) -> np.ndarray:
        """(n,) cost that each tensor adds to that of the chosen ones."""
        return self.own + (self.cost * (self.member @ chosen == 0.0)) @ self.member


class Solution(NamedTuple):
    """`chosen`, bool of shape (n,), fits; nothing that fits is worth more than `bound`."""

    chosen: np.ndarray
    bound: float


def reduce(
    worth: np.ndarray, member: np.ndarray, cost: np.ndarray, budget: float, required: np.ndarray
) -> Problem:
    """The choice among what is worth more than 0 and fits, beside the required ones.

    Args:
        worth: (n,) finite.
        member: (S, n) bool, the tensors that need each item.
        cost: (S,) of the items, not negative.
        budget: at least the cost of the required tensors.
        required: (n,) bool.
    """
    due = member[:, required].any(axis=1)
    left = budget - cost[due].sum()
    room = float(left > 0.0)
    member, cost = member[~due], cost[~due] / (left if room else 1.0)
    index = np.flatnonzero((worth > 0.0) & ~required & (cost @ member <= room))
    member, count = member[:, index], len(index)
    # items that the same tensors need are one
    rows, owner = np.unique(np.packbits(member, axis=1), axis=0, return_inverse=True)
    rows = np.unpackbits(rows, axis=1, count=count).astype(np.float64)
    costs = np.bincount(owner.ravel(), cost, len(rows))
    size = rows.sum(axis=1)
    scale = float(worth[index].max(initial=0.0))
    return Problem(
        index=index,
        worth=worth[index] / (scale or 1.0),
        own=costs[size == 1] @ rows[size == 1],
        member=rows[size > 1],
        cost=costs[size > 1],
        room=room,
        scale=scale,
    )


def fill(problem: Problem, chosen: np.ndarray) -> np.ndarray:
    """`chosen` and further tensors, most worth per added cost first, while they fit."""
    chosen = chosen.copy()
    while True:
        left, added = problem.room - problem.spent(chosen), problem.added(chosen)
        new = np.flatnonzero(~chosen & (added <= left))
        if not len(new):
            return chosen
        with np.errstate(divide="ignore"):
            new = new[np.argsort(-problem.worth[new] / added[new], kind="stable")]
        # together they add no more than the sum of what each adds alone: so many at once
        fit = np.cumsum(added[new]) <= left
        chosen[new[: max(1, int(fit.sum()))]] = True


def in_order(problem: Problem) -> Solution:
    """The tensors by their worth, the largest first, each that fits beside those before it."""
    chosen = np.zeros(len(problem.worth), bool)
    paid, left = np.zeros(len(problem.cost), bool), problem.room
    for k in np.argsort(-problem.worth, kind="stable"):
        due = (problem.member[:, k] > 0.0) & ~paid
        added = problem.own[k] + due @ problem.cost
        if added <= left:
            chosen[k] = True
            paid, left = paid | due, left - added
    return Solution(chosen, float(problem.worth.sum()))

"""What the solver decides: choices with a worth, items with a cost, and room for the costs.

In short::

    maximise    sum of the worth of the choices made
    subject to  sum of the costs of the items of which a choice is made <= room, for each resource,
                at most one choice (a mode) for each tensor.

A choice can make one item cheaper that others need: a filtered convolution passes its gradient on
at a lower cost. That refund counts where the item is paid.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True, eq=False)
class Problem:
    """The choices that are left when the required ones are paid for.

    Attributes:
        index: (n,) the choices among those that were given to `reduce`.
        tensor: (n,) the tensor of each, counted from 0 without gaps, ascending.
        worth: (n,) above 0, the largest 1.
        own: (n, R) cost of the items that no other choice needs, less refunds that are certain; 1
            is the whole budget.
        member: (S, n) 1.0 where a choice needs an item, for the items that several need.
        cost: (S, R) their costs.
        room: (R,) 1, or 0 where nothing of a resource is left.
        first: (T,) the first choice of each tensor.
        scale: one unit of worth.
        refund: (n, R) what each choice takes off the cost of an item.
        refunded: (n,) that item, counted from 0; -1 for none.
    """

    index: np.ndarray
    tensor: np.ndarray
    worth: np.ndarray
    own: np.ndarray
    member: np.ndarray
    cost: np.ndarray
    room: np.ndarray
    first: np.ndarray
    scale: float
    refund: np.ndarray
    refunded: np.ndarray

    def net(self, paid: np.ndarray) -> np.ndarray:
        """(n, R) own cost of each choice, less its refund where the item is paid; bool, (S,)."""
        if not self.has_refunds:
            return self.own
        return self.own - self.refund * np.append(paid, False)[self.refunded, None]

    def spent(self, chosen: np.ndarray) -> np.ndarray:
        """(R,) cost of the chosen ones; bool, shape (n,)."""
        paid = self.member @ chosen > 0.0
        return chosen @ self.net(paid) + paid @ self.cost

    def added(self, chosen: np.ndarray) -> np.ndarray:
        """(n, R) cost that each choice adds to that of the chosen ones."""
        paid = self.member @ chosen > 0.0
        cost = self.cost
        if self.has_refunds:
            cost = cost.copy()
            refunds = chosen & (self.refunded >= 0)
            np.subtract.at(cost, self.refunded[refunds], self.refund[refunds])
        return self.net(paid) + self.member.T @ (cost * ~paid[:, None])

    @cached_property
    def has_refunds(self) -> bool:
        """Whether a choice makes an item cheaper that others need."""
        return bool((self.refunded >= 0).any())

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """The choices for the same tensor, two by two."""
        same = np.triu(self.tensor[:, None] == self.tensor, 1)
        first, second = np.nonzero(same)
        return first, second

    @cached_property
    def is_single(self) -> bool:
        """Whether no tensor has two choices."""
        return len(self.first) == len(self.tensor)

    def best(self, gain: np.ndarray) -> np.ndarray:
        """(n,) largest gain among the choices for the same tensor."""
        if self.is_single:
            return gain
        return np.maximum.reduceat(gain, self.first)[self.tensor]

    def fits(self, chosen: np.ndarray) -> bool:
        """Whether there is room for the chosen ones."""
        return bool((self.spent(chosen) <= self.room).all())

    def once(self, order: np.ndarray) -> np.ndarray:
        """`order` with the first choice for each tensor alone."""
        if self.is_single:
            return order
        return order[np.sort(np.unique(self.tensor[order], return_index=True)[1])]


class Solution(NamedTuple):
    """`chosen`, bool of shape (n,), fits; nothing that fits is worth more than `bound`."""

    chosen: np.ndarray
    bound: float


def reduce(
    worth: np.ndarray,
    tensor: np.ndarray,
    member: np.ndarray,
    cost: np.ndarray,
    budget: np.ndarray,
    required: np.ndarray,
    refund: np.ndarray | None = None,
    refunded: np.ndarray | None = None,
) -> Problem:
    """The choice among what is worth more than 0 and fits, beside the required ones.

    Args:
        worth: (n,) finite.
        tensor: (n,) the tensor that each choice is for, ascending.
        member: (S, n) bool, the choices that need each item.
        cost: (S, R) of the items, not negative.
        budget: (R,) at least the cost of the required choices.
        required: (n,) bool.
        refund: (n, R) what each choice takes off the cost of the item `refunded`, (n,), -1 for
            none. Neither: nothing.
    """
    if refund is None or refunded is None:
        refund, refunded = np.zeros((len(worth), len(budget))), np.full(len(worth), -1)
    certain = required & (refunded >= 0)
    cost = cost.copy()
    np.subtract.at(cost, refunded[certain], refund[certain])
    due = np.asarray(member[:, required].any(axis=1))
    left = budget - cost[due].sum(axis=0)
    unit = np.where(left > 0.0, left, 1.0)
    room, cost, refund = (left > 0.0).astype(np.float64), cost / unit, refund / unit
    free = (worth > 0.0) & ~np.isin(tensor, tensor[required])
    refunded = np.where(free, refunded, -1)
    is_sure = np.append(due, False)[refunded]
    alone = member.T.astype(np.float64) @ (cost * ~due[:, None]) - refund * is_sure[:, None]
    most = refund * ((refunded >= 0) & ~is_sure)[:, None] + np.maximum(-alone, 0.0)
    index = np.flatnonzero(free & (alone <= room + most.sum(axis=0)).all(axis=1))
    count = len(index)
    base = -(refund * is_sure[:, None])[index]
    target = np.where(is_sure, -1, refunded)[index]
    member, cost, place = member[~due][:, index], cost[~due], np.cumsum(~due) - 1
    target = np.append(place, -1)[target]
    # items that the same choices need are one
    rows, owner = np.unique(np.packbits(member, axis=1), axis=0, return_inverse=True)
    owner = owner.ravel()
    rows = np.unpackbits(rows, axis=1, count=count)
    costs = np.zeros((len(rows), len(room)))
    np.add.at(costs, owner, cost)
    target = np.append(owner, -1)[target]
    size = rows.sum(axis=1, dtype=np.int64)
    common = (size > 1) | (np.isin(np.arange(len(rows)), target) & (size > 0))
    target = np.append(np.where(common, np.cumsum(common) - 1, -1), -1)[target]
    tensors, dense = np.unique(tensor[index], return_inverse=True)
    scale = float(worth[index].max(initial=0.0))
    return Problem(
        index=index,
        tensor=dense,
        worth=worth[index] / scale if count else np.zeros(0),
        own=rows[~common].T @ costs[~common] + base,
        member=rows[common].astype(np.float64),
        cost=costs[common],
        room=room,
        first=np.searchsorted(dense, np.arange(len(tensors))),
        scale=scale,
        refund=refund[index],
        refunded=target,
    )


def fill(problem: Problem, chosen: np.ndarray) -> np.ndarray:
    """`chosen` and further choices, most worth per added cost first, while they fit."""
    chosen = chosen.copy()
    while True:
        left = problem.room - problem.spent(chosen)
        added = problem.added(chosen)
        is_open = problem.best(chosen) == 0
        new = np.flatnonzero(is_open & (added <= left).all(axis=1))
        if not len(new):
            return chosen
        ratio = per_cost(problem.worth[new], added[new].max(axis=1))
        new = problem.once(new[np.argsort(-ratio, kind="stable")])
        # together they add no more than the sum of what each adds alone: so many at once
        fit = (np.cumsum(added[new], axis=0) <= left).all(axis=1)
        chosen[new[: max(1, int(np.logical_and.accumulate(fit).sum()))]] = True


def per_cost(worth: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Worth per cost, shape (n,); infinite for what costs nothing."""
    return np.divide(worth, cost, out=np.full(len(worth), np.inf), where=cost > 0.0)


def in_order(problem: Problem) -> Solution:
    """The choices by their worth, the largest first, each that fits beside those before it."""
    chosen = np.zeros(len(problem.worth), bool)
    paid, left = np.zeros(len(problem.cost), bool), problem.room.copy()
    is_open = np.ones(len(problem.first), bool)
    for k in np.argsort(-problem.worth, kind="stable"):
        due = (problem.member[:, k] > 0.0) & ~paid
        added = problem.own[k] + due @ problem.cost
        if is_open[problem.tensor[k]] and (added <= left).all():
            chosen[k], is_open[problem.tensor[k]] = True, False
            paid, left = paid | due, left - added
    return Solution(chosen, float(problem.best(problem.worth)[problem.first].sum()))

"""Upper bounds, by a price for the budget and by sharing costs.

No selection is worth more than price * room plus what its parts are worth beyond their priced costs
(Lagrangian relaxation). The cost of an item that several tensors need is divided among them: no
selection pays more that way than it does in truth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from elastic_tf.selection.problem import Problem

_PRICES = 64  # tried for the first bounds


class Relaxed(NamedTuple):
    """The best choice when room has a price.

    Attributes:
        bound: nothing is worth more.
        price: worth per cost.
        gain: (n,) worth beyond the priced costs; -inf where a tensor is not open.
        order: the open tensors by worth per cost, own and shares of the common ones.
    """

    bound: float
    price: float
    gain: np.ndarray
    order: np.ndarray


def first_bounds(problem: Problem) -> np.ndarray:
    """(n,) upper bound of the selections that begin with each tensor.

    A selection begins with its input-most tensor. Items that this one needs are paid, all other
    common ones given away.
    """
    worth, own = problem.worth, problem.own
    room = problem.room - problem.added(np.zeros(len(worth), bool))
    prices = np.zeros(1)
    if (own > 0.0).any():
        ratios = np.sort(worth[own > 0.0] / own[own > 0.0])
        prices = np.append(prices, ratios[:: len(ratios) // _PRICES + 1])
    gain = np.maximum(worth - prices[:, None] * own, 0.0)
    after = np.cumsum(gain[:, ::-1], axis=1)[:, ::-1] - gain
    return (prices[:, None] * room + after).min(axis=0) + worth


def relax(
    problem: Problem, is_open: np.ndarray, rows: np.ndarray, room: float, price: float
) -> Relaxed:
    """The best of the open tensors at the best price; (n,) `is_open`.

    The costs of the common items `rows`, which are not paid, are shared at a guess of the price.
    """
    cost = problem.own.copy()
    # at that price a tensor can bear what its worth leaves after its own cost
    able = np.where(is_open, np.maximum(problem.worth - price * cost, 0.0), 0.0)
    # the smallest items, which have the least choice, take first
    rows = rows[np.argsort(problem.member[rows] @ is_open, kind="stable")]
    for member, common in zip(problem.member[rows], problem.cost[rows].tolist()):
        total = float(able @ member)
        if total > 0.0 and common > 0.0:
            share = able * member * (common / total)
            cost += share
            able -= share * min(price, total / common)
    order = np.flatnonzero(is_open)
    with np.errstate(divide="ignore"):
        ratio = problem.worth[order] / cost[order]
    by = np.argsort(-ratio, kind="stable")
    order, ratio = order[by], ratio[by]
    # the first that does not fit sets the price
    last = int(np.searchsorted(np.cumsum(cost[order]), room, side="right"))
    price = float(ratio[last]) if last < len(order) else 0.0
    gain = np.where(is_open, problem.worth - price * cost, -np.inf)
    return Relaxed(price * room + float(np.maximum(gain, 0.0).sum()), price, gain, order)

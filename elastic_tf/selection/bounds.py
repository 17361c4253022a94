"""What can be reached at most: upper bounds by a price for the budget, and by sharing costs.

A price makes room worth something: no choice is worth more than price * room plus what its parts
are worth beyond their priced costs (Lagrangian relaxation). The cost of an item that several
choices need is divided among them: no selection pays more that way than it does in truth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from elastic_tf.selection.problem import Problem

_PRICES = 64  # tried for the first bounds
_STEPS = 30  # at most, to the best price
_NEAR = 1e-6  # of the best price's bound is near enough


class Relaxed(NamedTuple):
    """The best choice when room has a price.

    Attributes:
        bound: nothing is worth more.
        price: (R,) worth per cost.
        gain: (n,) worth beyond the priced costs; -inf where a choice is not open.
        cost: (n,) own cost and shares of the common ones, as one resource.
    """

    bound: float
    price: np.ndarray
    gain: np.ndarray
    cost: np.ndarray


def ways(resources: int) -> np.ndarray:
    """(W, R) how resources are added up to one: each alone, and their mean."""
    alone = np.eye(resources)
    return alone if resources == 1 else np.vstack([alone, np.full(resources, 1.0 / resources)])


def first_bounds(problem: Problem) -> np.ndarray:
    """(n,) upper bound of the selections that begin with each choice; -inf where it does not fit.

    A selection begins with its choice for the input-most tensor. Items that this one needs are
    paid, all other common ones given away.
    """
    worth, none = problem.worth, np.zeros(len(problem.worth), bool)
    room = problem.room - problem.added(none)
    bounds = np.full(len(worth), np.inf)
    for way in ways(len(problem.room)):
        own = problem.own @ way
        ratio = worth[own > 0.0] / own[own > 0.0]
        spread = np.quantile(ratio, np.linspace(0.0, 1.0, _PRICES)) if len(ratio) else []
        prices = np.concatenate([[0.0], spread])[:, None]
        gain = np.maximum.reduceat(worth - prices * own, problem.first, axis=1)
        gain = np.maximum(gain, 0.0)
        after = (np.cumsum(gain[:, ::-1], axis=1)[:, ::-1] - gain)[:, problem.tensor]
        bounds = np.minimum(bounds, (prices * (room @ way) + after).min(axis=0) + worth)
    return np.where((room < 0.0).any(axis=1), -np.inf, bounds)


def relax(
    problem: Problem, is_open: np.ndarray, rows: np.ndarray, room: np.ndarray, price: float
) -> Relaxed:
    """The best choice among the open ones when they may be cut and common costs are shared.

    Args:
        problem: what to choose from.
        is_open: (n,) bool.
        rows: the common items that are not paid.
        room: (R,) not negative.
        price: a guess.
    """
    worth = np.where(is_open, problem.worth, -np.inf)
    found = []
    for way in ways(len(room)):
        own = problem.own @ way
        shares = _shares(problem, is_open, own, rows, problem.cost[rows] @ way, price)
        cost = own + shares
        bound, best = _priced(problem, worth, cost, float(room @ way), price)
        found.append(Relaxed(bound, best * way, worth - best * cost, cost))
    return min(found, key=lambda one: one.bound)


def _shares(
    problem: Problem,
    is_open: np.ndarray,
    own: np.ndarray,
    rows: np.ndarray,
    costs: np.ndarray,
    price: float,
) -> np.ndarray:
    """(n,) what each choice bears of the common items.

    At the given price a choice can bear what its worth leaves after its own cost. The smallest
    items, which have the least choice, take first, in proportion to what theirs can bear.
    """
    total = np.zeros(len(own))
    able = np.where(is_open, np.maximum(problem.worth - price * own, 0.0), 0.0)
    members = problem.member[rows]
    for k in np.argsort(members @ is_open, kind="stable"):
        bearing = able * members[k]
        sum_of = bearing.sum()
        if sum_of > 0.0:
            able = able - bearing * min(1.0, price * costs[k] / sum_of)
        else:
            bearing = members[k] * is_open
            sum_of = bearing.sum()
        total += bearing * (costs[k] / sum_of)
    return total


def _priced(
    problem: Problem, worth: np.ndarray, cost: np.ndarray, room: float, price: float
) -> tuple[float, float]:
    """Lowest bound over all prices, and its price.

    The bound is convex and piecewise linear in the price: where the tangents on both sides of the
    minimum meet is the next price.
    """

    def tangent(price: float) -> tuple[float, float, float]:
        gain = worth - price * cost
        best = np.maximum.reduceat(gain, problem.first)
        chosen = problem.once(np.flatnonzero((gain > 0.0) & (gain == best[problem.tensor])))
        return price, price * room + best[best > 0.0].sum(), room - cost[chosen].sum()

    low = best = tangent(0.0)
    high = None
    for _ in range(_STEPS):
        if low[2] >= 0.0:
            break
        now = tangent(price)
        best = min(best, now, key=lambda one: one[1])
        if now[2] < 0.0:
            low = now
        else:
            high = now
        if high is None:
            price = 2.0 * max(price, 1e-9)
            continue
        price = (high[1] - high[2] * high[0] - low[1] + low[2] * low[0]) / (low[2] - high[2])
        if best[1] - (low[1] + low[2] * (price - low[0])) <= _NEAR * best[1]:
            break
    return float(best[1]), float(best[0])

"""Upper bounds, by a price for the budget and by sharing costs.

No selection is worth more than price * room plus what its parts are worth beyond their priced costs
(Lagrangian relaxation). The cost of an item that several choices need is divided among them: no
selection pays more that way than it does in truth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from elastic_tf.selection.problem import Problem

_PRICES = 64  # tried for a bound


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
    return np.unique(np.vstack([np.eye(resources), np.full(resources, 1.0 / resources)]), axis=0)


def first_bounds(problem: Problem) -> np.ndarray:
    """(n,) upper bound of the selections that begin with each choice; -inf where it does not fit.

    A selection begins with its choice for the input-most tensor. Items that this one needs are
    paid, all other common ones given away.
    """
    worth, none = problem.worth, np.zeros(len(problem.worth), bool)
    room = problem.room - problem.added(none)
    bounds = np.full(len(worth), np.inf)
    for way in ways(len(problem.room)):
        prices, gain = _best_gains(problem, worth, problem.own @ way)
        after = (np.cumsum(gain[:, ::-1], axis=1)[:, ::-1] - gain)[:, problem.tensor]
        bounds = np.minimum(bounds, (prices[:, None] * (room @ way) + after).min(axis=0) + worth)
    return np.where((room < 0.0).any(axis=1), -np.inf, bounds)


def relax(
    problem: Problem, is_open: np.ndarray, rows: np.ndarray, room: np.ndarray, price: float
) -> Relaxed:
    """The best of the open choices at the best price; (n,) `is_open`, (R,) `room`.

    The costs of the common items `rows`, which are not paid, are shared at a guess of the price.
    """
    worth = np.where(is_open, problem.worth, -np.inf)
    found = []
    for way in ways(len(room)):
        cost = problem.own @ way
        # at that price a choice can bear what its worth leaves after its own cost
        able = np.where(is_open, np.maximum(problem.worth - price * cost, 0.0), 0.0)
        # the smallest items, which have the least choice, take first
        for k in rows[np.argsort(problem.member[rows] @ is_open, kind="stable")]:
            bearing, common = able * problem.member[k], problem.cost[k] @ way
            if bearing.any():
                share = bearing / bearing.sum()
                able = able - np.minimum(price * common * share, bearing)
                cost = cost + common * share
        prices, gain = _best_gains(problem, worth, cost)
        bounds = prices * (room @ way) + gain.sum(axis=1)
        k = int(bounds.argmin())
        found.append(Relaxed(float(bounds[k]), prices[k] * way, worth - prices[k] * cost, cost))
    return min(found, key=lambda one: one.bound)


def _best_gains(
    problem: Problem, worth: np.ndarray, cost: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(P,) prices, from none to the highest that matters; (P, T) best gains of the tensors."""
    matters = (worth > 0.0) & (cost > 0.0)
    prices = np.zeros(1)
    if matters.any():
        spread = np.linspace(0.0, 1.0, _PRICES)
        prices = np.append(prices, np.quantile(worth[matters] / cost[matters], spread))
    gain = np.maximum.reduceat(worth - prices[:, None] * cost, problem.first, axis=1)
    return prices, np.maximum(gain, 0.0)

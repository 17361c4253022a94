"""Upper bounds, by a price for the budget and by sharing costs.

No selection is worth more than price * room plus what its parts are worth beyond their priced costs
(Lagrangian relaxation). The cost of an item that several choices need is divided among them: no
selection pays more that way than it does in truth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from elastic_tf.selection.problem import Problem

_AT_ONCE = 8  # prices tried at a time for the best one


class Relaxed(NamedTuple):
    """What is known of the selections among open choices.

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
    mean = np.full((1, resources), 1.0 / resources)
    return mean if resources == 1 else np.vstack([np.eye(resources), mean])


def relax(
    problem: Problem,
    is_open: np.ndarray,
    rows: np.ndarray,
    room: np.ndarray,
    price: float,
    own: np.ndarray,
) -> Relaxed:
    """The best of the open choices at the best price; (n,) `is_open`, (R,) `room`, (n, R) `own`.

    The costs of the common items `rows`, which are not paid, are shared at a guess of the price.
    """
    worth = np.where(is_open, problem.worth, -np.inf)
    # the smallest items, which have the least choice, take first
    rows = rows[np.argsort(problem.member[rows] @ is_open, kind="stable")]
    found = []
    for way in ways(len(room)):
        cost = own @ way
        # at that price a choice can bear what its worth leaves after its own cost
        able = np.where(is_open, np.maximum(problem.worth - price * cost, 0.0), 0.0)
        for member, common in zip(problem.member[rows], (problem.cost[rows] @ way).tolist()):
            total = float(able @ member)
            if total > 0.0 and common > 0.0:
                share = able * member * (common / total)
                cost += share
                able -= share * min(price, total / common)
        best, bound = _best_price(problem, worth, cost, float(room @ way))
        found.append(Relaxed(bound, best * way, worth - best * cost, cost))
    return min(found, key=lambda one: one.bound)


def _best_price(
    problem: Problem, worth: np.ndarray, cost: np.ndarray, room: float
) -> tuple[float, float]:
    """The price of the least bound, and that bound, which is convex in the price."""
    prices = _breaks(problem, worth, cost)
    low, high = 0, len(prices) - 1
    while True:
        tried = np.arange(low, high + 1, max((high - low) // _AT_ONCE, 1))
        tried = prices[tried]
        bounds = tried * room + _best_gains(problem, worth, cost, tried).sum(axis=1)
        k, step = int(bounds.argmin()), max((high - low) // _AT_ONCE, 1)
        if step == 1:
            return float(tried[k]), float(bounds[k])
        low, high = low + max(k - 1, 0) * step, min(low + (k + 1) * step, high)


def _breaks(problem: Problem, worth: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Prices at which a choice stops to pay, or another one for its tensor pays more."""
    matters = worth > 0.0
    gains, costs = [worth[matters]], [cost[matters]]
    if not problem.is_single:
        first, second = problem.pairs
        both = matters[first] & matters[second]
        first, second = first[both], second[both]
        gains.append(worth[first] - worth[second])
        costs.append(cost[first] - cost[second])
    gain, lost = np.concatenate(gains), np.concatenate(costs)
    crosses = gain * lost > 0.0
    return np.append(0.0, np.sort(gain[crosses] / lost[crosses]))


def _best_gains(
    problem: Problem, worth: np.ndarray, cost: np.ndarray, prices: np.ndarray
) -> np.ndarray:
    """(P, T) best gains of the tensors at each price."""
    gain = worth - prices[:, None] * cost
    if not problem.is_single:
        gain = np.maximum.reduceat(gain, problem.first, axis=1)
    return np.maximum(gain, 0.0)

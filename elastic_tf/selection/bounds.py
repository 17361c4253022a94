"""Upper bounds of what can be chosen, by the deepest tensor of the choice.

All of them price the time: for any price >= 0 no choice is worth more than price * room plus what
the tensors are worth beyond their priced cost.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from elastic_tf.selection.problem import Problem

# Bisections of the price in `branch_bounds`, each a factor of two at first and half as far later.
_BISECTIONS = 6


def depth_bounds(problem: Problem) -> np.ndarray:
    """(n,) upper bound of the choices with deepest tensor d; -inf where d alone does not fit.

    The sets that d meets are due, those that it does not meet are given away.
    """
    worth, cost = problem.worth, problem.cost
    room = _room(problem)
    with np.errstate(divide="ignore"):
        ratio = worth / cost
    ratio = ratio[np.isfinite(ratio)]
    bounds = np.where(room < 0.0, -np.inf, np.cumsum(worth[::-1])[::-1])
    if not len(ratio):
        return bounds
    prices = np.unique(np.quantile(ratio, np.linspace(0.0, 1.0, 65)))[:, None]
    gain = np.maximum(worth - prices * cost, 0.0)
    after = np.cumsum(gain[:, ::-1], axis=1)[:, ::-1] - gain
    priced = (prices * np.maximum(room, 0.0) + after).min(axis=0) + worth
    return np.minimum(bounds, priced)


def branch_bounds(problem: Problem, depths: np.ndarray, price: float) -> np.ndarray:
    """(m,) `depth_bounds` of `depths`, tighter: the sets that d does not meet are shared out.

    Tensors that do not fit beside d are left out.

    Args:
        problem: what to choose from.
        depths: (m,) indices of deepest tensors.
        price: about the worth per microsecond at which the budget ends, for a start.
    """
    room = np.maximum(_room(problem)[depths], 0.0)
    inside = np.arange(len(problem.worth)) > depths[:, None]  # (m, n)
    inside &= problem.cost <= room[:, None]
    unmet = ~problem.branch[:, depths].T  # (m, b)
    shares = shared_out(problem.worth, problem.cost, problem.branch, problem.branch_time, price)
    # Tensors that are out bear nothing: what they would bear is borne by the others.
    remaining = inside.astype(np.float64) @ shares.T
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(unmet & (remaining > 0.0), problem.branch_time / remaining, 0.0)
    cost = problem.cost + scale @ shares
    worth = np.where(inside, problem.worth, 0.0)
    # The bound is convex in the price; its slope is the room that is left.
    prices = np.full(len(depths), price)
    bounds = np.full(len(depths), np.inf)
    for step in range(_BISECTIONS):
        gain = worth - prices[:, None] * cost
        taken = gain > 0.0
        bounds = np.minimum(bounds, prices * room + np.einsum("ij,ij->i", gain, taken))
        left = room - np.einsum("ij,ij->i", cost, taken)
        prices = prices * 2.0 ** (-np.sign(left) * 0.5**step)
    return bounds + problem.worth[depths]


def shared_out(
    worth: np.ndarray, cost: np.ndarray, member: np.ndarray, times: np.ndarray, price: float
) -> np.ndarray:
    """(b, n) the times of the sets divided among their tensors.

    At the given price a tensor can bear what its worth leaves after its own cost. The smallest
    sets, which have the least choice, take first, in proportion to what their tensors can bear.
    """
    shares = np.zeros(member.shape)
    for s, share in _shares(worth, cost, member, times, price):
        shares[s] = share
    return shares


def borne(
    worth: np.ndarray, cost: np.ndarray, member: np.ndarray, times: np.ndarray, price: float
) -> np.ndarray:
    """(n,) what each tensor bears of all sets together: the sum of `shared_out`."""
    total = np.zeros(len(worth))
    for _, share in _shares(worth, cost, member, times, price):
        total += share
    return total


def _shares(
    worth: np.ndarray, cost: np.ndarray, member: np.ndarray, times: np.ndarray, price: float
) -> Iterator[tuple[int, np.ndarray]]:
    """Each set with the share of its time that each tensor bears."""
    able = np.maximum(worth / price - cost, 0.0) if price > 0.0 else worth.copy()
    for s in np.argsort(np.count_nonzero(member, axis=1), kind="stable"):
        bearing = able * member[s]
        total = bearing.sum()
        if total > 0.0:
            able -= bearing * min(1.0, times[s] / total)
        else:
            bearing = worth * member[s]
            total = bearing.sum()
        bearing *= times[s] / total
        yield s, bearing


def _room(problem: Problem) -> np.ndarray:
    """(n,) what is left of the budget when d is trained, with the sets that it meets."""
    met = problem.branch_time @ problem.branch
    return problem.budget - problem.tail - problem.cost - met

"""Improves a choice to the best one over the dependency sets, and proves how far it can be off.

Every choice has one deepest tensor d, and for each d the bound of what can be reached is cheap.
Most depths fall at once. For the others the sets of parallel branches that d does not meet are
decided one by one: either the set is paid for, or its tensors stay out. With all sets decided a
knapsack is left, which is solved exactly.
"""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

import numpy as np

from elastic_tf import knapsack
from elastic_tf.reduction import Problem, fill, spent

# Differences in the sum of importances that float64 does not tell apart.
_EQUAL = 1e-12
_TINY = float(np.finfo(np.float64).tiny)
# Work is counted in states of a knapsack's list, about 0.15 microseconds each on a 2 GHz x86 core.
_NODE_WORK, _SET_WORK = 1_000, 100
# The second amount is spent only while the proof leaves more than _MUCH to be missing.
_WORK, _MORE_WORK = 80_000, 2_000_000
_MUCH = 1e-4
_STATES, _MORE_STATES = (256, 4096), 65_536
# Factors around the last price; the best one is taken.
_PRICES = 2.0 ** np.arange(-3.0, 3.5, 0.5)


class Node(NamedTuple):
    """Choices whose deepest tensor is `deepest`, further ones among `open`, `paid` sets paid."""

    deepest: int
    open: np.ndarray  # (n,) bool
    paid: np.ndarray  # (b,) bool


class Result(NamedTuple):
    chosen: np.ndarray
    upper_bound: float


def improve(problem: Problem, chosen: np.ndarray) -> Result:
    """Best choice, at least as good as `chosen`, and an upper bound for all choices.

    Args:
        problem: what to choose from.
        chosen: (n,) bool, a choice within the budget.
    """
    search = _Search(problem, chosen)
    bounds = depth_bounds(problem)
    depths = np.flatnonzero(bounds > search.floor)
    if len(depths) and len(problem.branch):
        tight = branch_bounds(problem, depths, search.value / max(problem.budget, _TINY))
        bounds[depths] = np.minimum(bounds[depths], tight)
    for d in depths:
        search.push(
            float(bounds[d]), Node(int(d), np.arange(len(bounds)) > d, problem.branch[:, d])
        )
    return search.run()


def depth_bounds(problem: Problem) -> np.ndarray:
    """(n,) upper bound of the choices with deepest tensor d; -inf where d alone does not fit.

    The sets that d meets are due, those that it does not meet are given away, and for any price
    >= 0 no choice is worth more than price * room + sum(max(0, worth - price * cost)) after d.
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

    Args:
        problem: what to choose from.
        depths: (m,) indices of deepest tensors.
        price: about the worth per microsecond at which the budget ends, for a start.
    """
    after = np.arange(len(problem.worth)) > depths[:, None]  # (m, n)
    unmet = ~problem.branch[:, depths].T  # (m, b)
    worth = problem.worth * after
    room = np.maximum(_room(problem)[depths], 0.0)
    bounds = np.full(len(depths), np.inf)
    for _ in range(2):
        shares = shared_out(problem.worth, problem.cost, problem.branch, problem.branch_time, price)
        # Tensors before d are out: what they would bear is borne by the others.
        remaining = after.astype(np.float64) @ shares.T
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(unmet & (remaining > 0.0), problem.branch_time / remaining, 0.0)
        cost = (problem.cost + scale @ shares) * after
        lowest = np.inf
        for candidate in price * _PRICES:
            priced = candidate * room + np.maximum(worth - candidate * cost, 0.0).sum(axis=1)
            priced += problem.worth[depths]
            bounds = np.minimum(bounds, priced)
            if priced.max() < lowest:
                lowest, price = float(priced.max()), float(candidate)
    return bounds


def shared_out(
    worth: np.ndarray, cost: np.ndarray, member: np.ndarray, times: np.ndarray, price: float
) -> np.ndarray:
    """(b, n) the times of the sets divided among their tensors.

    At the given price a tensor can bear what its worth leaves after its own cost. The smallest
    sets, which have the least choice, take first, in proportion to what their tensors can bear.
    """
    shares = np.zeros(member.shape)
    able = np.maximum(worth / price - cost, 0.0) if price > 0.0 else worth.copy()
    for s in np.argsort(np.count_nonzero(member, axis=1), kind="stable"):
        bearing = able * member[s]
        total = bearing.sum()
        if total > 0.0:
            able -= bearing * min(1.0, times[s] / total)
        else:
            bearing = worth * member[s]
            total = bearing.sum()
        shares[s] = bearing * (times[s] / total)
    return shares


def _room(problem: Problem) -> np.ndarray:
    """(n,) what is left of the budget when d is trained, with the sets that it meets."""
    met = problem.branch_time @ problem.branch
    return problem.budget - problem.tail - problem.cost - met


class _Search:
    """Best bound first; remembers the best choice so far and the open nodes."""

    def __init__(self, problem: Problem, chosen: np.ndarray) -> None:
        self.problem = problem
        self.best = chosen
        self.value = float(problem.worth[chosen].sum())
        self.unsolved = 0.0  # bound of what was given up
        self.work = 0
        self.price = 0.0  # last worth per microsecond seen at a break
        self._heap: list[tuple[float, int, Node]] = []
        self._tie = itertools.count()

    @property
    def floor(self) -> float:
        """What a choice must exceed to be better."""
        return self.value * (1.0 + _EQUAL)

    def push(self, bound: float, node: Node) -> None:
        heapq.heappush(self._heap, (-bound, next(self._tie), node))

    def run(self) -> Result:
        while self._heap and self._waiting > self.floor:
            much = max(self._waiting, self.unsolved) > self.value * (1.0 + _MUCH)
            if self.work > (_MORE_WORK if much else _WORK):
                break
            bound = self._waiting
            self._visit(bound, heapq.heappop(self._heap)[2])
        return Result(self.best, max(self.value, self.unsolved, self._waiting))

    @property
    def _waiting(self) -> float:
        return -self._heap[0][0] if self._heap else 0.0

    def _visit(self, bound: float, node: Node) -> None:
        problem, d = self.problem, node.deepest
        self.work += _NODE_WORK
        paid = problem.tail[d] + problem.cost[d] + problem.branch_time[node.paid].sum()
        room = problem.budget - float(paid)
        if room < 0.0:
            return
        items = np.flatnonzero(node.open)
        unpaid = np.flatnonzero(~node.paid)
        member = problem.branch[np.ix_(unpaid, items)]
        touched = member.any(axis=1)
        if touched.any():
            self._split(bound, node, room, items, unpaid[touched], member[touched])
        else:
            self._solve(bound, node, room, items)

    def _solve(self, bound: float, node: Node, room: float, items: np.ndarray) -> None:
        """All sets are decided: a knapsack."""
        own = self.problem.worth[node.deepest]
        worth, cost = self.problem.worth[items], self.problem.cost[items]
        for states in (*_STATES, _MORE_STATES):
            if states == _MORE_STATES and bound <= self.value * (1.0 + _MUCH):
                break
            floor = self.floor - own
            solved = knapsack.solve(worth, cost, room, floor=floor, states=states)
            self.work += solved.work
            bound = min(bound, solved.bound + own)
            if solved.chosen is not None:
                self._offer(node.deepest, items[solved.chosen])
            if bound <= self.floor:
                break
        if bound > self.floor:
            self.unsolved = max(self.unsolved, bound)

    def _split(
        self,
        bound: float,
        node: Node,
        room: float,
        items: np.ndarray,
        unpaid: np.ndarray,
        member: np.ndarray,
    ) -> None:
        """Bounds the node and, if that is not enough, decides one more set.

        Each unpaid set's time is shared out among its tensors: no choice pays more that way than
        it does in truth, so the knapsack with these costs bounds it.
        """
        problem = self.problem
        own, worth = problem.worth[node.deepest], problem.worth[items]
        alone, times = problem.cost[items], problem.branch_time[unpaid]
        price = self.price
        self.work += _SET_WORK * len(unpaid)
        for _ in range(2):
            cost = alone + shared_out(worth, alone, member, times, price).sum(axis=0)
            relaxed = knapsack.relax(worth, cost, room)
            bound = min(bound, relaxed.bound + own)
            if bound <= self.floor:
                return
            price = self.price = relaxed.price
        self._offer_prefix(node.deepest, items, worth, cost)
        # A set that holds the chosen one is paid with it. Both answers should cost something.
        inside = member.astype(np.float32)
        holds = inside @ inside.T >= inside.sum(axis=1)[:, None]
        paying = relaxed.price * (holds @ times)
        losing = member @ np.maximum(worth - relaxed.price * alone, 0.0)
        s = int(np.argmax(np.minimum(paying, losing)))
        paid, left = node.paid.copy(), node.open.copy()
        paid[unpaid[holds[s]]] = True
        left[items[member[s]]] = False
        self.push(bound, node._replace(paid=paid))
        self.push(bound, node._replace(open=left))

    def _offer_prefix(
        self, deepest: int, items: np.ndarray, worth: np.ndarray, cost: np.ndarray
    ) -> None:
        """Offers as many items as fit, by worth per shared-out cost, output-most first on ties."""
        with np.errstate(divide="ignore"):
            ratio = worth / cost
        order = items[np.argsort(-ratio * (1.0 + 1e-9 * np.arange(len(items))), kind="stable")]
        fits, too_many = 0, len(order) + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            chosen = np.zeros(len(self.problem.worth), bool)
            chosen[deepest] = True
            chosen[order[:middle]] = True
            if spent(self.problem, chosen) <= self.problem.budget:
                fits = middle
            else:
                too_many = middle
        self._offer(deepest, order[:fits])

    def _offer(self, deepest: int, others: np.ndarray) -> None:
        """Takes the choice, filled up, if it is within the budget and better than the best."""
        chosen = np.zeros(len(self.problem.worth), bool)
        chosen[deepest] = True
        chosen[others] = True
        if spent(self.problem, chosen) > self.problem.budget:
            return
        chosen = fill(self.problem, chosen)
        value = float(self.problem.worth[chosen].sum())
        if value > self.value:
            self.value, self.best = value, chosen

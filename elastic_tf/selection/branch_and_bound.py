"""Improves a choice to the best one over the dependency sets, and proves how far it can be off.

Every choice has one deepest tensor d, and for each d the bound of what can be reached is cheap.
Most depths fall at once. For the others the sets of parallel branches that d does not meet are
decided one by one: either the set is paid for, or its tensors stay out. On the way, tensors are
taken or left for good where the opposite could not beat the best choice so far. With all sets
decided a knapsack is left, which is solved exactly.

The work is limited, and counted rather than timed: the same problem has the same answer anywhere.
"""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

import numpy as np

from elastic_tf.selection import knapsack
from elastic_tf.selection.bounds import borne, branch_bounds, depth_bounds
from elastic_tf.selection.problem import Problem, fill, spent

# Differences in the sum of importances that float64 does not tell apart.
_EQUAL = 1e-12
_TINY = float(np.finfo(np.float64).tiny)
# Work is counted in states of a knapsack's list, about 0.2 microseconds each on a 2 GHz x86 core.
_NODE_WORK, _SET_WORK, _ITEMS_PER_WORK = 1_000, 20, 50
# (work, gap): once so much work per tensor is done, a proof that no more than `gap` is missing
# is enough. The last work is the end in any case.
_CHAIN_LIMITS = ((80, 1e-3), (1_500, np.inf))
_BRANCH_LIMITS = ((80, 1e-3), (160, 1e-2), (400, np.inf))
_FEWEST = 250  # tensors; fewer may take the work of so many
_STATES = (256, 4096, 65_536)
# How often the bound of one node is sharpened.
_ROUNDS = 4


class Node(NamedTuple):
    """Choices of `deepest`, all of `taken`, further ones among `open`; `paid` sets are paid."""

    deepest: int
    taken: np.ndarray  # (n,) bool
    open: np.ndarray  # (n,) bool
    paid: np.ndarray  # (b,) bool
    tries: int = 0  # how often its knapsack was given up


class Result(NamedTuple):
    """`chosen` fits the budget; nothing that fits is worth more than `upper_bound`."""

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
    index, none = np.arange(len(bounds)), np.zeros(len(bounds), bool)
    for d in depths:
        search.push(float(bounds[d]), Node(int(d), none, index > d, problem.branch[:, d]))
    return search.run()


class _Search:
    """Best bound first, knapsacks that were given up last; remembers the best choice so far."""

    def __init__(self, problem: Problem, chosen: np.ndarray) -> None:
        self.problem = problem
        self.best = chosen
        self.value = float(problem.worth[chosen].sum())
        self.unsolved = 0.0  # bound of what was given up for good
        self.work = 0
        self.price = 0.0  # last worth per microsecond seen at a break
        self._heap: list[tuple[int, float, int, Node]] = []
        self._tie = itertools.count()

    @property
    def floor(self) -> float:
        """What a choice must exceed to be better."""
        return self.value * (1.0 + _EQUAL)

    def push(self, bound: float, node: Node) -> None:
        heapq.heappush(self._heap, (node.tries, -bound, next(self._tie), node))

    def run(self) -> Result:
        while self._heap and not self._enough():
            _, bound, _, node = heapq.heappop(self._heap)
            if -bound > self.floor:
                self._visit(-bound, node)
        return Result(self.best, max(self.value, self._waiting))

    @property
    def _waiting(self) -> float:
        """Highest bound among what is not solved."""
        return max([self.unsolved, *(-entry[1] for entry in self._heap)])

    def _enough(self) -> bool:
        """Whether the work done allows to leave it at what is proved."""
        limits = _BRANCH_LIMITS if len(self.problem.branch) else _CHAIN_LIMITS
        done = self.work / max(len(self.problem.worth), _FEWEST)
        if done <= limits[0][0]:
            return False
        missing = self._waiting / max(self.value, _TINY) - 1.0
        return any(done > work and missing <= gap for work, gap in limits)

    def _visit(self, bound: float, node: Node) -> None:
        """Sharpens the bound of the node and, if that is not enough, decides one more set.

        Each unpaid set's time is shared out among its tensors: no choice pays more that way than
        it does in truth, so the knapsack with these costs bounds it. Where moving a tensor across
        its break costs more than can be won, the tensor is fixed.
        """
        problem = self.problem
        for _ in range(_ROUNDS):
            self.work += _NODE_WORK
            room = self._room(node)
            if room < 0.0:
                return
            items = np.flatnonzero(node.open & (problem.cost <= room))
            unpaid = np.flatnonzero(~node.paid)
            member = problem.branch[np.ix_(unpaid, items)]
            touched = member.any(axis=1)
            if not touched.any():
                self._solve(bound, node, room, items)
                return
            unpaid, member = unpaid[touched], member[touched]
            self.work += len(unpaid) * (_SET_WORK + len(items) // _ITEMS_PER_WORK)
            worth, alone = problem.worth[items], problem.cost[items]
            cost = alone + borne(worth, alone, member, problem.branch_time[unpaid], self.price)
            relaxed = knapsack.relax(worth, cost, room)
            reach = relaxed.bound + self._own(node)
            bound = min(bound, reach)
            if bound <= self.floor:
                return
            price = self.price = relaxed.price
            gain = worth - price * cost
            gain[cost > room] = -np.inf
            sure = np.abs(gain) >= reach - self.floor
            if not sure.any():
                break
            taken, left = node.taken.copy(), node.open.copy()
            inside = sure & (gain > 0.0)
            taken[items[inside]] = True
            left[items[sure]] = False
            paid = node.paid.copy()
            paid[unpaid] |= member[:, inside].any(axis=1)
            node = node._replace(taken=taken, open=left, paid=paid)
        self._offer_prefix(node, items, worth, cost)
        if bound > self.floor:
            self._split(bound, node, items, unpaid, member, price)

    def _room(self, node: Node) -> float:
        """What is left of the budget."""
        problem, d = self.problem, node.deepest
        alone = problem.tail[d] + problem.cost[d] + problem.cost[node.taken].sum()
        return problem.budget - float(alone + problem.branch_time[node.paid].sum())

    def _own(self, node: Node) -> float:
        """Worth of what is chosen for sure."""
        worth = self.problem.worth
        return float(worth[node.deepest] + worth[node.taken].sum())

    def _solve(self, bound: float, node: Node, room: float, items: np.ndarray) -> None:
        """All sets are decided: a knapsack."""
        own = self._own(node)
        worth, cost = self.problem.worth[items], self.problem.cost[items]
        floor, states = self.floor - own, _STATES[node.tries]
        solved = knapsack.solve(worth, cost, room, floor=floor, states=states)
        self.work += solved.work
        bound = min(bound, solved.bound + own)
        if solved.chosen is not None:
            self._offer(node, items[solved.chosen])
        if bound <= self.floor:
            return
        if node.tries + 1 < len(_STATES):
            self.push(bound, node._replace(tries=node.tries + 1))
        else:
            self.unsolved = max(self.unsolved, bound)

    def _split(
        self,
        bound: float,
        node: Node,
        items: np.ndarray,
        unpaid: np.ndarray,
        member: np.ndarray,
        price: float,
    ) -> None:
        """Decides the set for which both answers cost most."""
        worth, alone = self.problem.worth[items], self.problem.cost[items]
        # A set that holds the chosen one is paid with it.
        inside = member.astype(np.float32)
        holds = inside @ inside.T >= inside.sum(axis=1)[:, None]
        paying = price * (holds @ self.problem.branch_time[unpaid])
        losing = member @ np.maximum(worth - price * alone, 0.0)
        s = int(np.argmax(np.minimum(paying, losing)))
        paid, left = node.paid.copy(), node.open.copy()
        paid[unpaid[holds[s]]] = True
        left[items[member[s]]] = False
        self.push(bound, node._replace(paid=paid))
        self.push(bound, node._replace(open=left))

    def _offer_prefix(
        self, node: Node, items: np.ndarray, worth: np.ndarray, cost: np.ndarray
    ) -> None:
        """Offers as many items as fit, by worth per shared-out cost, output-most first on ties."""
        with np.errstate(divide="ignore"):
            ratio = worth / cost
        order = items[np.argsort(-ratio * (1.0 + 1e-9 * np.arange(len(items))), kind="stable")]
        fits, too_many = 0, len(order) + 1
        chosen = node.taken.copy()
        chosen[node.deepest] = True
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            candidate = chosen.copy()
            candidate[order[:middle]] = True
            if spent(self.problem, candidate) <= self.problem.budget:
                fits = middle
            else:
                too_many = middle
        self._offer(node, order[:fits])

    def _offer(self, node: Node, others: np.ndarray) -> None:
        """Takes the choice, filled up, if it is within the budget and better than the best."""
        chosen = node.taken.copy()
        chosen[node.deepest] = True
        chosen[others] = True
        if spent(self.problem, chosen) > self.problem.budget:
            return
        chosen = fill(self.problem, chosen)
        value = float(self.problem.worth[chosen].sum())
        if value > self.value:
            self.value, self.best = value, chosen

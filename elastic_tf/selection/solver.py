"""The selection, solved to a certified gap by branch and bound.

Every selection begins with its input-most tensor; each is a branch, and most fall at once to the
first bounds. In the others the common items are decided one by one: either the item is paid, or
the tensors that need it stay out. On the way tensors are taken or left for good where the opposite
could not beat the best selection so far. When all common items are decided a knapsack is left,
which is solved with a list of undominated states.

The work is limited, and counted rather than timed: the same problem has the same answer anywhere.
"""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

import numpy as np

from elastic_tf.selection.bounds import Relaxed, first_bounds, relax
from elastic_tf.selection.problem import Problem, Solution, fill

GAP = 1e-3  # proven share of the worth that may be missing
_WORK = 600  # nodes; a node of 214 tensors takes about half a millisecond
_STATES_PER_NODE = 2_000  # so many states of a knapsack take as long as a node
_STATES = 256  # of a knapsack's list at its first try; 16 times as many at each further one


class Node(NamedTuple):
    """All selections of `taken` and some of `open`."""

    taken: np.ndarray  # (n,) bool
    open: np.ndarray  # (n,) bool, none of them taken
    paid: np.ndarray  # (S,) bool, the common items that are paid in any case
    states: int  # of its knapsack's list


def solve(problem: Problem, gap: float = GAP, work: int = _WORK) -> Solution:
    """A selection worth at least 1 - gap of the best one, or what the work suffices for.

    Args:
        problem: what to choose from.
        gap: share of the worth that may be missing.
        work: nodes visited at most; the bound holds in any case.
    """
    if not len(problem.worth):
        return Solution(np.zeros(0, bool), 0.0)
    return _Search(problem, gap).run(work)


class _Search:
    """Best bound first; remembers the best selection so far."""

    def __init__(self, problem: Problem, gap: float) -> None:
        self.problem, self.gap = problem, gap
        self.best = fill(problem, np.zeros(len(problem.worth), bool))
        self.value = float(problem.worth[self.best].sum())
        self.dropped = self.value  # nothing that was left out is worth more
        self.price = self.value  # last one at which a budget ended
        self.work = 0
        self._heap: list[tuple[float, int, Node]] = []
        self._tie = itertools.count()

    @property
    def floor(self) -> float:
        """What a bound must exceed to be looked into."""
        return self.value / (1.0 - self.gap)

    def run(self, work: int) -> Solution:
        problem = self.problem
        bounds = first_bounds(problem)
        for k in range(len(bounds)):
            taken, is_open = np.arange(len(bounds)) == k, np.arange(len(bounds)) > k
            paid = problem.member[:, k] > 0.0
            self._push(float(bounds[k]), Node(taken, is_open, paid, _STATES))
        while self._heap and -self._heap[0][0] > self.floor and self.work < work:
            bound, _, node = heapq.heappop(self._heap)
            self._visit(-bound, node)
        waiting = -self._heap[0][0] if self._heap else 0.0
        return Solution(self.best, max(self.value, self.dropped, waiting))

    def _push(self, bound: float, node: Node) -> None:
        if self._keeps(bound):
            heapq.heappush(self._heap, (-bound, next(self._tie), node))

    def _keeps(self, bound: float) -> bool:
        """Whether it is worth looking further; remember what is left out."""
        if bound > self.floor:
            return True
        self.dropped = max(self.dropped, bound)
        return False

    def _visit(self, bound: float, node: Node) -> None:
        """Sharpen the bound of the node and, if that is not enough, decide one more item."""
        problem, (taken, is_open, paid, states) = self.problem, node
        self.work += 1
        paid = paid | (problem.member @ taken > 0.0)
        room = problem.room - float(taken @ problem.own + paid @ problem.cost)
        if room < 0.0:
            return
        is_open = is_open & (problem.own <= room)
        rows = np.flatnonzero(~paid & (problem.member @ is_open > 0.0))
        relaxed = relax(problem, is_open, rows, room, self.price)
        self.price = relaxed.price or self.price
        reach = relaxed.bound + float(problem.worth[taken].sum())
        bound = min(bound, reach)
        if not self._keeps(bound):
            return
        self._round(taken, relaxed.order)
        loss = np.where(is_open, np.abs(relaxed.gain), 0.0)  # of deciding otherwise
        sure = is_open & (loss >= reach - self.floor)
        self.dropped = max(self.dropped, reach - float(loss[sure].min(initial=np.inf)))
        node = Node(taken | (sure & (relaxed.gain > 0.0)), is_open & ~sure, paid, states)
        if len(rows):
            self._split(bound, node, rows, relaxed)
        else:
            self._decide(bound, node, relaxed)

    def _round(self, taken: np.ndarray, order: np.ndarray) -> None:
        """Offer the first ones of the order as far as they fit, filled up."""
        problem, chosen = self.problem, taken.copy()
        met = np.cumsum(problem.member[:, order], axis=1) + (problem.member @ taken)[:, None]
        spent = taken @ problem.own + np.cumsum(problem.own[order]) + problem.cost @ (met > 0.0)
        chosen[order[spent <= problem.room]] = True
        self._offer(chosen)

    def _offer(self, chosen: np.ndarray) -> None:
        """Remember the selection, filled up, if it fits and is better than the best so far."""
        if self.problem.spent(chosen) <= self.problem.room:
            chosen = fill(self.problem, chosen)
            value = float(self.problem.worth[chosen].sum())
            if value > self.value:
                self.value, self.best = value, chosen

    def _split(self, bound: float, node: Node, rows: np.ndarray, relaxed: Relaxed) -> None:
        """Decide the item for which both answers cost most."""
        problem = self.problem
        member = problem.member[rows] * node.open
        # an item that the tensors of another one need is paid with that one
        holds = member @ member.T >= member.sum(axis=1)[:, None]
        paying = holds @ problem.cost[rows] * relaxed.price
        losing = member @ np.maximum(problem.worth - problem.own * relaxed.price, 0.0)
        k = int(np.argmax(np.minimum(paying, losing)))
        paid = node.paid.copy()
        paid[rows[holds[k]]] = True
        self._push(bound, node._replace(paid=paid))
        self._push(bound, node._replace(open=node.open & (member[k] == 0.0)))

    def _decide(self, bound: float, node: Node, relaxed: Relaxed) -> None:
        """Solve the knapsack that is left when no common item is open.

        Tensor after tensor each state goes on with it and without it. States are dropped that
        cannot exceed the floor, that have less worth in less room than another one, and the least
        promising ones where they become too many.
        """
        problem, price, floor = self.problem, relaxed.price, self.floor
        order = np.flatnonzero(node.open)
        order = order[np.argsort(-np.abs(relaxed.gain[order]), kind="stable")]
        taken, worth = node.taken.copy(), problem.worth
        value = np.array([worth[taken].sum()])
        left = np.array([problem.room - taken @ problem.own - node.paid @ problem.cost])
        rest = np.cumsum(np.maximum(relaxed.gain[order], 0.0)[::-1])[::-1]
        history, cut = [], -np.inf
        for k, further in zip(order, np.append(rest[1:], 0.0)):
            count = len(value)
            value = np.append(value + worth[k], value)
            left = np.append(left - problem.own[k], left)
            reach = value + left * price + further
            keep = np.flatnonzero((left >= 0.0) & (reach > floor))
            keep = keep[np.lexsort((-value[keep], -left[keep]))]
            most = np.maximum.accumulate(value[keep])
            keep = keep[np.append(True, most[1:] > most[:-1])[: len(keep)]]
            if len(keep) > node.states:
                keep = keep[np.argsort(-reach[keep], kind="stable")]
                cut = max(cut, float(reach[keep[node.states]]))
                keep = keep[: node.states]
            history.append((k, count, keep))
            value, left = value[keep], left[keep]
            self.work += len(value) // _STATES_PER_NODE
        self.dropped = max(self.dropped, floor)
        if len(value) and left.max() >= 0.0:
            state = int(np.argmax(value))
            for k, count, keep in reversed(history):
                without, state = divmod(int(keep[state]), count)
                taken[k] = not without
            self._offer(taken)
        self._push(min(bound, cut), node._replace(states=16 * node.states))

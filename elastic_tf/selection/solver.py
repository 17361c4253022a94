"""The selection, solved to a certified gap by branch and bound.

The items that several choices need are decided one by one: either the item is paid, or the choices
that need it stay out. On the way choices are made or left for good where the opposite could not
beat the best selection so far. When all common items are decided a multiple-choice knapsack is
left, which is solved with a list of undominated states.

The work is limited, and counted rather than timed: the same problem has the same answer anywhere.
"""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

import numpy as np

from elastic_tf.selection.bounds import Relaxed, relax
from elastic_tf.selection.problem import Problem, Solution, fill, per_cost

GAP = 1e-3  # proven share of the worth that may be missing
_WORK = 1_000  # nodes; a node of 214 tensors takes about half a millisecond
_STATES_PER_NODE = 2_000  # so many states of a knapsack take as long as a node
_ROUNDING = 1e-12  # of a sum of costs
_STATES = 256  # of a knapsack's list at its first try; 16 times as many at each further one


class Node(NamedTuple):
    """All selections of `taken` and some of `open`."""

    taken: np.ndarray  # (n,) bool
    open: np.ndarray  # (n,) bool, none of them for a tensor of a taken one
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
        none, unpaid = np.zeros(len(self.best), bool), np.zeros(len(self.problem.cost), bool)
        self._push(float(self.problem.worth.sum()), Node(none, ~none, unpaid, _STATES))
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
        # what may be paid counts as paid where that gives a refund
        own = problem.net(paid | (problem.member @ is_open > 0.0))
        room = problem.room - taken @ own - paid @ problem.cost
        most = room + np.maximum(-own[is_open], 0.0).sum(axis=0)
        if (most < 0.0).any():
            return
        is_open = is_open & (own <= most).all(axis=1)
        rows = np.flatnonzero(~paid & (problem.member @ is_open > 0.0))
        relaxed = relax(problem, is_open, rows, room, self.price, own)
        self.price = float(relaxed.price.sum()) or self.price
        reach = relaxed.bound + float(problem.worth[taken].sum())
        node = Node(taken, is_open, paid, states)
        if not self._keeps(min(bound, reach)):
            return
        self._round(node, relaxed)
        if not len(rows):
            self._decide(reach, node, room, relaxed, own)
            return
        inside, loss = _losses(problem, relaxed)
        sure = is_open & (loss >= reach - self.floor)
        self.dropped = max(self.dropped, reach - float(loss[sure].min(initial=np.inf)))
        is_open = is_open & ~sure & (problem.best(sure & inside) == 0)
        node = Node(taken | (sure & inside), is_open, paid, states)
        self._split(min(bound, reach), node, rows, relaxed)

    def _round(self, node: Node, relaxed: Relaxed) -> None:
        """Offer as many open choices as fit, by worth per shared cost."""
        problem, chosen = self.problem, node.taken.copy()
        order = np.flatnonzero(node.open)
        ratio = per_cost(problem.worth[order], relaxed.cost[order])
        order = problem.once(order[np.argsort(-ratio, kind="stable")])
        spent = node.taken @ problem.own + np.cumsum(problem.own[order], axis=0)
        met = np.cumsum(problem.member[:, order], axis=1) + (problem.member @ node.taken)[:, None]
        spent += (met > 0.0).T @ problem.cost
        spent -= self._refunds(node.taken, order, met > 0.0)
        fits = np.flatnonzero((spent <= problem.room).all(axis=1))
        chosen[order[: fits.max(initial=-1) + 1]] = True
        self._offer(chosen)

    def _refunds(self, taken: np.ndarray, order: np.ndarray, met: np.ndarray) -> np.ndarray:
        """(n, R) refunds of the taken and so many of the ordered, which pay the items `met`."""
        problem = self.problem
        refunds = np.zeros((len(order) + 1, len(problem.room)))
        if not problem.has_refunds or not len(order):
            return refunds[:-1]
        place = np.full(len(taken), -1)
        place[taken], place[order] = 0, np.arange(len(order))
        gives = np.flatnonzero((place >= 0) & (problem.refunded >= 0))
        first = np.where(met.any(axis=1), met.argmax(axis=1), len(order))
        when = np.maximum(place[gives], first[problem.refunded[gives]])
        np.add.at(refunds, when, problem.refund[gives])
        return np.cumsum(refunds[:-1], axis=0)

    def _offer(self, chosen: np.ndarray) -> None:
        """Remember the selection, filled up, if it fits and is better than the best so far."""
        if self.problem.fits(chosen):
            chosen = fill(self.problem, chosen)
            value = float(self.problem.worth[chosen].sum())
            if value > self.value:
                self.value, self.best = value, chosen

    def _split(self, bound: float, node: Node, rows: np.ndarray, relaxed: Relaxed) -> None:
        """Decide the item for which both answers cost most."""
        problem = self.problem
        member = problem.member[rows] * node.open
        # an item that the choices of another one need is paid with that one
        holds = member @ member.T >= member.sum(axis=1)[:, None]
        paying = holds @ (problem.cost[rows] @ relaxed.price)
        losing = member @ np.maximum(problem.worth - problem.own @ relaxed.price, 0.0)
        k = int(np.argmax(np.minimum(paying, losing)))
        paid = node.paid.copy()
        paid[rows[holds[k]]] = True
        self._push(bound, node._replace(paid=paid))
        self._push(bound, node._replace(open=node.open & (member[k] == 0.0)))

    def _decide(
        self, bound: float, node: Node, room: np.ndarray, relaxed: Relaxed, own: np.ndarray
    ) -> None:
        """Solve the knapsack that is left when no common item is open.

        Tensor after tensor each state goes on with each option that does not lose too much. States
        are dropped that cannot exceed the floor, that have less worth in more room than another
        one, and the least promising ones where they become too many.
        """
        problem, floor = self.problem, self.floor
        inside, loss = _losses(problem, relaxed)
        best = np.maximum(problem.best(relaxed.gain), 0.0)
        slack = bound - floor
        options = node.open & (best - relaxed.gain < slack)
        sure = inside & (loss >= slack)
        undecided = problem.once(np.flatnonzero(options & ~sure))
        order = undecided[np.argsort(-np.maximum(best, -relaxed.gain)[undecided], kind="stable")]
        taken = node.taken | sure
        worths = np.append(problem.worth, 0.0)
        costs = np.vstack([own, np.zeros(len(room))])
        value = np.array([problem.worth[taken].sum()])
        left = (room - sure @ own)[None]
        rest = float(best[order].sum())
        history, cut = [], -np.inf
        offered = [self._options(k, options, bool(best[k] < slack)) for k in order]
        least = [costs[these].min(axis=0) for these in offered]
        due = np.sum(least, axis=0) if offered else np.zeros(len(room))
        for k, these, low in zip(order, offered, least):
            due = due - low  # what the tensors to come cost at least
            value = (value[:, None] + worths[these]).ravel()
            left = (left[:, None] - costs[these]).reshape(-1, len(room))
            rest -= float(best[k])
            reach = value + left @ relaxed.price + rest
            keep = np.flatnonzero((left - due >= -_ROUNDING).all(axis=1) & (reach > floor))
            if len(room) == 1:
                keep = keep[np.lexsort((-value[keep], -left[keep, 0]))]
                most = np.maximum.accumulate(value[keep])
                keep = keep[np.append(True, value[keep][1:] > most[:-1])[: len(keep)]]
            if len(keep) > node.states:
                keep = keep[np.argsort(-reach[keep], kind="stable")]
                cut = max(cut, float(reach[keep[node.states]]))
                keep = keep[: node.states]
            history.append((these, keep))
            value, left = value[keep], left[keep]
            self.work += len(value) // _STATES_PER_NODE
        self.dropped = max(self.dropped, floor)
        fits = np.flatnonzero((left >= 0.0).all(axis=1))
        if len(fits):
            state = fits[np.argmax(value[fits])]
            for these, keep in reversed(history):
                state, option = divmod(int(keep[state]), len(these))
                if these[option] >= 0:
                    taken[these[option]] = True
            self._offer(taken)
        self._push(min(bound, cut), node._replace(states=16 * node.states))

    def _options(self, k: int, options: np.ndarray, may_none: bool) -> np.ndarray:
        """The open choices for the tensor of one; -1 stands for none of them."""
        these = np.flatnonzero(options & (self.problem.tensor == self.problem.tensor[k]))
        return np.append(these, -1) if may_none else these


def _losses(problem: Problem, relaxed: Relaxed) -> tuple[np.ndarray, np.ndarray]:
    """(n,) bool, the choices of the relaxed selection; (n,) what deciding otherwise loses."""
    gain = relaxed.gain
    best = np.maximum(problem.best(gain), 0.0)
    inside = np.zeros(len(gain), bool)
    inside[problem.once(np.flatnonzero((gain > 0.0) & (gain == best)))] = True
    second = np.maximum(problem.best(np.where(inside, -np.inf, gain)), 0.0)
    return inside, np.where(inside, gain - second, best - gain)

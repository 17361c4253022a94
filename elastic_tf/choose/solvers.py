"""The solvers: branch and bound, the paper's recurrence, an integer program, and an order.

Branch and bound: no selection is worth more than price * room plus what its tensors are worth
beyond their priced costs, whatever the price. The cost of an item that several tensors need is
divided among them: no selection pays more that way than it does in truth.

These items are decided one by one: either the item is paid, or the tensors that need it stay out.
On the way tensors are taken or left for good where the opposite could not beat the best selection
so far. When all common items are decided a knapsack is left, which is solved with a list of
undominated states. The work is counted, not timed: the same problem has the same answer anywhere.
"""

from __future__ import annotations

import heapq
import itertools
from typing import NamedTuple

import numpy as np

from elastic_tf.choose.problem import Choices, Problem, Solution, per_cost

GAP = 1e-3  # proven share of the worth that may be missing
_WORK = 1_000  # nodes; a node of 214 tensors takes about half a millisecond
_STATES_PER_NODE = 2_000  # so many states of a knapsack take as long as a node
_ROUNDING = 1e-12  # of a sum of costs
_STATES = 256  # of a knapsack's list at its first try; 16 times as many at each further one
TICKS = 10_000  # of the budget, in the recurrence
_TICK = 1e-9  # of a tick: rounding
_NODES = 1_000  # of the integer program, counted rather than timed
_ROOM = 1e3  # that program keeps its rows to 1e-6
_SAFE = 1e-5  # of room, where a row was not kept


class Node(NamedTuple):
    """All selections of `taken` and some of `open`."""

    taken: np.ndarray  # (n,) bool
    open: np.ndarray  # (n,) bool, none of them taken
    paid: np.ndarray  # (S,) bool, the common items that are paid in any case
    states: int  # of its knapsack's list


class Relaxed(NamedTuple):
    """What is known of the selections among open tensors."""

    bound: float  # nothing is worth more
    price: float  # worth per cost
    gain: np.ndarray  # (n,) worth beyond the priced costs; -inf where a tensor is not open
    order: np.ndarray  # the open tensors by worth for their own cost and shares of common ones


def solve(problem: Problem, gap: float = GAP, work: int = _WORK) -> Solution:
    """A selection worth at least 1 - gap of the best one, or what so many nodes suffice for."""
    if not len(problem.worth):
        return Solution(np.zeros(0, bool), 0.0)
    return _Search(problem, gap).run(work)


def relax(
    problem: Problem, is_open: np.ndarray, rows: np.ndarray, room: float, price: float
) -> Relaxed:
    """The bound of the open tensors, (n,) bool, at the best price.

    The costs of the common items `rows`, which are not paid, are shared at a guess of the price.
    """
    # the smallest items, which have the least choice, take first
    rows = rows[np.argsort(problem.member[rows] @ is_open, kind="stable")]
    cost = problem.own.copy()
    # at that price a tensor can bear what its worth leaves after its own cost
    able = np.where(is_open, np.maximum(problem.worth - price * cost, 0.0), 0.0)
    for member, common in zip(problem.member[rows], problem.cost[rows].tolist()):
        total = float(able @ member)
        if total > 0.0 and common > 0.0:
            share = able * member * (common / total)
            cost += share
            able -= share * min(price, total / common)
    ratio = per_cost(problem.worth, cost)
    order = np.flatnonzero(is_open)
    order = order[np.argsort(-ratio[order], kind="stable")]
    # the best price is what the first tensor pays that is not wholly within the room
    ends = int(np.searchsorted(np.cumsum(cost[order]), room, side="right"))
    best = float(ratio[order[ends]]) if ends < len(order) else 0.0
    gain = np.where(is_open, problem.worth - best * cost, -np.inf)
    return Relaxed(best * room + float(np.maximum(gain, 0.0).sum()), best, gain, order)


class _Search:
    """Best bound first; remembers the best selection so far."""

    def __init__(self, problem: Problem, gap: float) -> None:
        self.problem, self.gap = problem, gap
        self.best = problem.filled(np.zeros(len(problem.worth), bool))
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
        room = problem.room - float(taken @ problem.own + paid @ problem.cost)
        if room < 0.0:
            return
        is_open = is_open & (problem.own <= room)
        rows = np.flatnonzero(~paid & (problem.member @ is_open > 0.0))
        relaxed = relax(problem, is_open, rows, room, self.price)
        self.price = relaxed.price or self.price
        reach = relaxed.bound + float(problem.worth[taken].sum())
        if not self._keeps(min(bound, reach)):
            return
        self._round(taken, relaxed.order)
        if not len(rows):
            self._decide(reach, Node(taken, is_open, paid, states), room, relaxed)
            return
        loss = np.abs(relaxed.gain)  # of deciding otherwise than the relaxed selection
        sure = is_open & (loss >= reach - self.floor)
        self.dropped = max(self.dropped, reach - float(loss[sure].min(initial=np.inf)))
        taken = taken | (sure & (relaxed.gain > 0.0))
        self._split(min(bound, reach), Node(taken, is_open & ~sure, paid, states), rows, relaxed)

    def _round(self, taken: np.ndarray, order: np.ndarray) -> None:
        """Offer as many open tensors as fit, in that order."""
        problem, chosen = self.problem, taken.copy()
        met = np.cumsum(problem.member[:, order], axis=1) + (problem.member @ taken)[:, None]
        spent = taken @ problem.own + np.cumsum(problem.own[order]) + problem.cost @ (met > 0.0)
        chosen[order[: int((spent <= problem.room).sum())]] = True
        self._offer(chosen)

    def _offer(self, chosen: np.ndarray) -> None:
        """Remember the selection, filled up, if it fits and is better than the best so far."""
        if self.problem.spent(chosen) <= self.problem.room:
            chosen = self.problem.filled(chosen)
            value = float(self.problem.worth[chosen].sum())
            if value > self.value:
                self.value, self.best = value, chosen

    def _split(self, bound: float, node: Node, rows: np.ndarray, relaxed: Relaxed) -> None:
        """Decide the item for which both answers cost most."""
        problem = self.problem
        member = problem.member[rows] * node.open
        # an item that the tensors of another one need is paid with that one
        holds = member @ member.T >= member.sum(axis=1)[:, None]
        paying = holds @ (problem.cost[rows] * relaxed.price)
        losing = member @ np.maximum(problem.worth - problem.own * relaxed.price, 0.0)
        k = int(np.argmax(np.minimum(paying, losing)))
        paid = node.paid.copy()
        paid[rows[holds[k]]] = True
        self._push(bound, node._replace(paid=paid))
        self._push(bound, node._replace(open=node.open & (member[k] == 0.0)))

    def _decide(self, bound: float, node: Node, room: float, relaxed: Relaxed) -> None:
        """Solve the knapsack that is left when no common item is open.

        Tensor after tensor each state goes on with it and without it. States are dropped that
        cannot exceed the floor, that have less worth in more room than another one, and the least
        promising ones where they become too many.
        """
        problem, gain, floor = self.problem, relaxed.gain, self.floor
        slack = bound - floor
        taken = node.taken | (gain >= slack)
        order = np.flatnonzero(node.open & (np.abs(gain) < slack))
        order = order[np.argsort(-np.abs(gain[order]), kind="stable")]
        value = np.array([problem.worth[taken].sum()])
        left = np.array([room - (taken & ~node.taken) @ problem.own])
        rest = float(np.maximum(gain[order], 0.0).sum())
        history, cut = [], -np.inf
        for k in order:
            value = (value[:, None] + [problem.worth[k], 0.0]).ravel()
            left = (left[:, None] - [problem.own[k], 0.0]).ravel()
            rest -= max(float(gain[k]), 0.0)
            reach = value + left * relaxed.price + rest
            keep = np.flatnonzero((left >= -_ROUNDING) & (reach > floor))
            keep = keep[np.lexsort((-value[keep], -left[keep]))]
            most = np.maximum.accumulate(value[keep])
            keep = keep[np.append(True, value[keep][1:] > most[:-1])[: len(keep)]]
            if len(keep) > node.states:
                keep = keep[np.argsort(-reach[keep], kind="stable")]
                cut = max(cut, float(reach[keep[node.states]]))
                keep = keep[: node.states]
            history.append(keep)
            value, left = value[keep], left[keep]
            self.work += len(value) // _STATES_PER_NODE
        self.dropped = max(self.dropped, floor)
        fits = np.flatnonzero(left >= 0.0)
        if len(fits):
            state = int(fits[np.argmax(value[fits])])
            for k, keep in zip(order[::-1], reversed(history)):
                state, is_out = divmod(int(keep[state]), 2)
                taken[k] = not is_out
            self._offer(taken)
        self._push(min(bound, cut), node._replace(states=16 * node.states))


def recurrence(problem: Problem, ticks: int = TICKS) -> Solution:
    """Best selection on the chain, with times rounded up to `ticks` steps of the budget.

    With d the input-most trained tensor the time of carrying the gradient to it is fixed, and what
    is left is a knapsack over the tensors after d. One row serves every d, from the output to the
    input: row[b] is the most worth that fits into b ticks over the tensors after d. An item that
    several tensors need is charged for all up to the last of them.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 6. The paper asks every shallower
    depth at every tensor, O(n^2 * ticks), and rounds down, which can exceed the budget.
    """
    count = len(problem.worth)
    chosen = np.zeros(count, bool)
    if not count or not problem.room:
        return Solution(chosen, float(problem.worth.sum()))
    cost = problem.own * ticks - _TICK
    last = count - 1 - problem.member[:, ::-1].argmax(axis=1)
    tail = np.cumsum(np.bincount(last, problem.cost, count)[::-1])[::-1]
    room = (1.0 - tail) * ticks + _TICK
    steps = np.ceil(np.maximum(cost, 0.0))
    row, taken = np.zeros(ticks + 1), np.zeros((count, ticks + 1), bool)
    best, deepest, left = 0.0, -1, 0
    for k in range(count - 1, -1, -1):
        if room[k] < 0.0:
            break  # the deeper, the less room
        size = int(room[k]) + 1
        if cost[k] > room[k]:
            continue
        asked = int(room[k] - cost[k])
        value = row[asked] + problem.worth[k]
        if value > best:
            best, deepest, left = value, k, asked
        shift = int(steps[k])
        with_k = row[: max(size - shift, 0)] + problem.worth[k]
        without_k = row[shift:size]
        taken[k, shift:size] = with_k > without_k
        row[shift:size] = np.maximum(with_k, without_k)
    if deepest >= 0:
        chosen[deepest] = True
        for k in range(deepest + 1, count):
            if taken[k, left]:
                chosen[k] = True
                left -= int(steps[k])
    every, rows = np.ones(count, bool), np.arange(len(problem.cost))
    return Solution(chosen, relax(problem, every, rows, problem.room, 1.0).bound)


def best_choices(
    choices: Choices, worth: np.ndarray, room: np.ndarray, required: np.ndarray, gap: float = GAP
) -> Solution:
    """Choices worth at least 1 - gap of the best ones, or what a bounded search suffices for.

    maximise worth @ x, x of the choices and y of the items binary, subject to

    * cost.T @ y <= room, and at most one choice for each tensor;
    * x[k] <= y[s] for the choices that need an item: of items that need each other's choices, one
      inside the next, y of the smaller <= y of the larger says the same in fewer rows.

    (n,) finite `worth`; (R,) `room`, at least the cost of the required choices, (n,) bool.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes long to load

    keep, owner = np.unique(choices.member, axis=0, return_inverse=True)
    count, items = len(worth), len(keep)
    cost = np.zeros((items, len(room)))
    np.add.at(cost, owner.ravel(), choices.cost)
    unit = np.where(room > 0.0, room / _ROOM, 1.0)
    part, columns = keep.astype(np.float64), count + items
    inside = (part @ part.T >= part.sum(axis=1)[:, None]) & ~np.eye(items, dtype=bool)
    # neither through another item between, nor beside one that the choice needs as well
    smaller, larger = np.nonzero(inside & (inside.astype(float) @ inside == 0.0))
    larger_of, choice = np.nonzero(keep & (inside.T.astype(float) @ part == 0.0))
    low = np.concatenate([choice, count + smaller])
    high = count + np.concatenate([larger_of, larger])
    spent = np.zeros((len(room), columns))
    spent[:, count:] = cost.T / unit[:, None]
    needs = np.zeros((len(low), columns))
    needs[np.arange(len(low)), low] = 1.0
    needs[np.arange(len(low)), high] = -1.0
    once = np.zeros((int(choices.tensor.max()) + 1, columns))
    once[choices.tensor, np.arange(count)] = 1.0

    may = required | (worth > 0.0)
    able = may & (choices.member.T @ choices.cost <= room).all(axis=1)
    scale = float(np.abs(worth[able]).max(initial=0.0)) or 1.0
    upper, lower = np.append(may, np.ones(items)), np.append(required, np.zeros(items))
    value = np.append(worth, np.zeros(items)) / scale
    for safe in (0.0, _SAFE):
        found = milp(
            -value,
            integrality=np.ones(columns),
            bounds=Bounds(lower, upper),
            constraints=[
                LinearConstraint(needs, -np.inf, 0.0),
                LinearConstraint(once, -np.inf, 1.0),
                LinearConstraint(spent, -np.inf, (1.0 - safe) * room / unit),
            ],
            options={"mip_rel_gap": gap, "node_limit": _NODES},
        )
        chosen = required if found.x is None else found.x[:count] > 0.5
        if (choices.spent(chosen) <= room).all():
            break
    else:
        chosen = required
    reached = float(worth[chosen].sum())
    bound = np.inf if found.mip_dual_bound is None else -scale * found.mip_dual_bound
    return Solution(chosen, max(reached, min(bound, float(worth[may].sum()))))


def in_order(
    choices: Choices, worth: np.ndarray, room: np.ndarray, required: np.ndarray
) -> Solution:
    """The tensors by their worth, the largest first, each that fits beside those before it.

    As `reduce` is given them, of any number of resources.
    """
    chosen, paid = required.copy(), np.asarray(choices.member[:, required].any(axis=1))
    left = room - choices.cost[paid].sum(axis=0)
    alone = choices.member.T @ (choices.cost * ~paid[:, None])
    able = (worth > 0.0) & ~required & (alone <= left).all(axis=1)
    for k in np.argsort(-worth, kind="stable"):
        due = choices.member[:, k] & ~paid
        added = choices.cost[due].sum(axis=0)
        if able[k] and (added <= left).all():
            chosen[k], paid, left = True, paid | due, left - added
    return Solution(chosen, float(worth[able | required].sum()))

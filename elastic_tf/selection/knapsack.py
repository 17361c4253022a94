"""The 0/1 knapsack on exact times: maximise sum(worth[x]) subject to sum(cost[x]) <= room.

Items are ordered by falling worth per cost. Filling the room in that order up to the break gives
the bound; an optimal choice differs from that filling in few items near the break. First only the
items nearest to the break are decided, which gives a good choice. Then items whose change would
cost more than can still be won are fixed, and the others are decided one after the other with a
list of undominated states.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief

# So many items on either side of the break are decided first.
_CORE = 16
# A cost that is as good as none.
_TINY = 1e-300
_MOST = 1e100
# A step of the list takes as long as so many of its states.
_STEP_WORK = 100


class Relaxed(NamedTuple):
    """The knapsack when items may be cut: `order[:whole]` fit, the next one breaks.

    Items that do not fit alone are not in `order`.
    """

    bound: float
    price: float  # worth per cost of the item that breaks; 0 if all fit
    order: np.ndarray
    whole: int


class Solved(NamedTuple):
    """`chosen` is None unless it is worth more than the floor; nothing is worth above `bound`."""

    bound: float
    chosen: np.ndarray | None
    work: int  # states looked at


def relax(worth: np.ndarray, cost: np.ndarray, room: float) -> Relaxed:
    """Upper bound of the knapsack: the best choice when one item may be cut (Dantzig).

    Args:
        worth: > 0, shape (n,).
        cost: >= 0, shape (n,).
        room: >= 0.
    """
    worth, cost, room = _checked(worth, cost, room)
    order = np.flatnonzero(cost <= room)
    with np.errstate(divide="ignore", over="ignore"):
        order = order[np.argsort(-worth[order] / cost[order], kind="stable")]
    spent = np.cumsum(cost[order])
    whole = int(np.searchsorted(spent, room, side="right"))
    value = float(worth[order[:whole]].sum())
    if whole == len(order):
        return Relaxed(value, 0.0, order, whole)
    price = float(worth[order[whole]] / cost[order[whole]])
    left = room - (spent[whole - 1] if whole else 0.0)
    return Relaxed(value + float(left) * price, price, order, whole)


def solve(worth: np.ndarray, cost: np.ndarray, room: float, *, floor: float, states: int) -> Solved:
    """Best choice if it is worth more than `floor`, and an upper bound in any case.

    Args:
        worth: > 0, shape (n,).
        cost: >= 0, shape (n,).
        room: >= 0.
        floor: choices worth no more than this are of no interest.
        states: length of the list at most. Where it cuts the most promising states are kept, the
            choice may not be the best, and the bound stays above what was cut.
    """
    arguments.number("floor", floor)
    states = arguments.count("states", states)
    worth, cost, room = _checked(worth, cost, room)
    relaxed = relax(worth, cost, room)
    chosen = np.zeros(len(worth), bool)
    chosen[relaxed.order[: relaxed.whole]] = True
    if relaxed.whole == len(relaxed.order) or relaxed.bound <= floor:
        return Solved(relaxed.bound, chosen if relaxed.bound > floor else None, 0)
    # What it costs to move an item across the break, against the bound.
    order = relaxed.order
    regret = np.abs(worth[order] - relaxed.price * cost[order])
    near = np.argsort(regret, kind="stable")
    best, work = None, 0
    if np.count_nonzero(regret < relaxed.bound - floor) > 3 * _CORE:
        core = near[np.abs(near - relaxed.whole) <= _CORE]
        core = order[core[::-1]]
        first = _decide(worth, cost, room, chosen, core, floor, states)
        best, work = first.chosen, first.work
        if best is not None:
            floor = float(worth[best].sum())
    near = near[: np.count_nonzero(regret < relaxed.bound - floor)]
    if not len(near):
        return Solved(relaxed.bound, best, work)
    second = _decide(worth, cost, room, chosen, order[near[::-1]], floor, states)
    if second.chosen is not None:
        best = second.chosen
    return Solved(max(second.bound, floor), best, work + second.work)


def _checked(
    worth: np.ndarray, cost: np.ndarray, room: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """The same as float64; what no knapsack is made of is refused."""
    for name, values in (("worth", worth), ("cost", cost)):
        if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iuf":
            raise TypeError(f"`{name}` must be numbers of shape (n,). Received: {brief(values)}.")
    if len(worth) != len(cost):
        raise ValueError(
            f"`worth` and `cost` must be of one length. Received: {worth.shape} and {cost.shape}: "
            f"worth={brief(worth)}, cost={brief(cost)}."
        )
    worth, cost = worth.astype(np.float64, copy=False), cost.astype(np.float64, copy=False)
    if len(worth) and not 0.0 < worth.min() <= worth.max() <= _MOST:
        raise ValueError(f"`worth` must be above 0, at most {_MOST:g}. Received: {brief(worth)}.")
    if len(cost) and not 0.0 <= cost.min() <= cost.max() <= _MOST:
        raise ValueError(f"`cost` must be from 0 to {_MOST:g}. Received: {brief(cost)}.")
    return worth, cost, arguments.number("room", room, low=0.0)


def _decide(
    worth: np.ndarray,
    cost: np.ndarray,
    room: float,
    chosen: np.ndarray,
    undecided: np.ndarray,
    floor: float,
    states: int,
) -> Solved:
    """Adds the best of the undecided items to the chosen ones, in the order given."""
    chosen = chosen.copy()
    chosen[undecided] = False
    weight = cost[chosen].sum(keepdims=True)
    value = worth[chosen].sum(keepdims=True)
    ratio = worth[undecided] / np.maximum(cost[undecided], _TINY)
    later = undecided[np.argsort(-ratio, kind="stable")]  # what is not yet decided
    cut_bound, work = floor, 0
    history = []
    for k in undecided:
        later = later[later != k]
        weight = np.concatenate([weight, weight + cost[k]])
        value = np.concatenate([value, value + worth[k]])
        reach = value + _relaxed(worth[later], cost[later], room - weight)
        keep = np.flatnonzero((weight <= room) & (reach > floor))
        work += _STEP_WORK + len(weight)
        if not len(keep):
            return Solved(cut_bound, None, work)
        keep = keep[np.argsort(weight[keep], kind="stable")]
        ahead = np.maximum.accumulate(value[keep])
        keep = keep[np.append(True, value[keep[1:]] > ahead[:-1])]
        if len(keep) > states:
            kept = _thinned(weight[keep], reach[keep], states)
            cut_bound = float(reach[keep[~kept]].max(initial=cut_bound))
            keep = keep[kept]
        history.append((keep, len(weight) // 2))
        weight, value = weight[keep], value[keep]
    best = int(np.argmax(value))
    bound = max(cut_bound, float(value[best]))
    if value[best] <= floor:
        return Solved(cut_bound, None, work)
    for k, (keep, half) in zip(undecided[::-1], history[::-1]):
        best = int(keep[best])
        chosen[k] = best >= half
        best -= half if best >= half else 0
    return Solved(bound, chosen, work)


def _thinned(weight: np.ndarray, reach: np.ndarray, states: int) -> np.ndarray:
    """(m,) bool, about `states` of m states: the most promising ones, and some of all weights.

    Args:
        weight: ascending, shape (m,).
        reach: what each can become, shape (m,).
        states: at least 1.
    """
    kept = np.zeros(len(weight), bool)
    kept[np.argpartition(-reach, states // 2)[: states // 2]] = True
    width = (weight[-1] - weight[0]) / max(states - states // 2, 1)
    bucket = np.floor((weight - weight[0]) / max(width, _TINY))
    order = np.lexsort((reach, bucket))
    kept[order[np.append(bucket[order][1:] != bucket[order][:-1], True)]] = True
    return kept


def _relaxed(worth: np.ndarray, cost: np.ndarray, rooms: np.ndarray) -> np.ndarray:
    """For each room an upper bound of what the items add; they come by falling worth per cost.

    The item that breaks is either left, and the next one cut, or taken, and the one before cut.

    Source: Martello & Toth, An upper bound for the zero-one knapsack problem, 1977.
    """
    if not len(worth):
        return np.zeros(len(rooms))
    rooms = np.maximum(rooms, 0.0)
    ratio = worth / np.maximum(cost, _TINY)
    ratio = np.concatenate([ratio[:1], ratio, [0.0, 0.0]])
    spent = np.concatenate([[0.0], np.cumsum(cost)])
    gained = np.concatenate([[0.0], np.cumsum(worth)])
    whole = np.searchsorted(spent[1:], rooms, side="right")
    left = rooms - spent[whole]
    missing = np.append(cost, 0.0)[whole] - left
    without = left * ratio[whole + 2]
    within = np.append(worth, 0.0)[whole] - missing * ratio[whole]
    return gained[whole] + np.where(whole == len(worth), 0.0, np.maximum(without, within))

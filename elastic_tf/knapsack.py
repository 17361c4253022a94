"""The 0/1 knapsack on exact times: maximise sum(worth[x]) subject to sum(cost[x]) <= room.

Items are ordered by falling worth per cost. Filling the room in that order up to the break gives
the bound; an optimal choice differs from that filling in few items near the break. Items whose
change would cost more than can be won are fixed, the others are decided one after the other with a
list of undominated states.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Relaxed(NamedTuple):
    """The knapsack when items may be cut: `order`[:whole] fit, the next one breaks."""

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
    with np.errstate(divide="ignore"):
        order = np.argsort(-worth / cost, kind="stable")
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
    relaxed = relax(worth, cost, room)
    chosen = np.zeros(len(worth), bool)
    chosen[relaxed.order[: relaxed.whole]] = True
    if relaxed.whole == len(worth):
        return Solved(relaxed.bound, chosen if relaxed.bound > floor else None, 0)
    if relaxed.bound <= floor:
        return Solved(relaxed.bound, None, 0)
    # What it costs to move an item across the break, against the bound.
    regret = np.abs(worth - relaxed.price * cost)
    undecided = np.flatnonzero(regret < relaxed.bound - floor)
    undecided = undecided[np.argsort(-regret[undecided], kind="stable")]
    chosen[undecided] = False
    return _decide(worth, cost, room, relaxed.price, chosen, undecided, floor, states)


def _decide(
    worth: np.ndarray,
    cost: np.ndarray,
    room: float,
    price: float,
    chosen: np.ndarray,
    undecided: np.ndarray,
    floor: float,
    states: int,
) -> Solved:
    """Adds the best of the undecided items to the chosen ones, largest regret first."""
    weight = cost[chosen].sum(keepdims=True)
    value = worth[chosen].sum(keepdims=True)
    gain = np.maximum(worth[undecided] - price * cost[undecided], 0.0)
    gain_after = np.append(np.cumsum(gain[::-1])[::-1], 0.0)[1:]
    worth_after = np.append(np.cumsum(worth[undecided][::-1])[::-1], 0.0)[1:]
    cut_bound, work = floor, 0
    history = []
    for i, k in enumerate(undecided):
        weight = np.concatenate([weight, weight + cost[k]])
        value = np.concatenate([value, value + worth[k]])
        reach = value + np.minimum(price * (room - weight) + gain_after[i], worth_after[i])
        keep = np.flatnonzero((weight <= room) & (reach > floor))
        work += len(weight)
        if not len(keep):
            return Solved(cut_bound, None, work)
        keep = keep[np.argsort(weight[keep], kind="stable")]
        ahead = np.maximum.accumulate(value[keep])
        keep = keep[np.append(True, value[keep[1:]] > ahead[:-1])]
        if len(keep) > states:
            cut = np.argpartition(-reach[keep], states)
            cut_bound = max(cut_bound, float(reach[keep[cut[states]]]))
            keep = keep[np.sort(cut[:states])]
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

"""A timing profile reduced to what the solver has to decide.

The tensors of positive importance, the time that each adds alone, the time that depends only on
the deepest of them, and the few sets of parallel branches that are neither.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from elastic_tf.timing import TimingProfile


class Problem(NamedTuple):
    """maximise sum(worth[chosen]) subject to spent(chosen) <= budget.

    Attributes:
        tensors: (n,) indices of the tensors in the profile, in forward order.
        worth: (n,) importance, > 0.
        cost: (n,) time of the sets that hold no other tensor of the problem.
        tail: (n,) time of the sets {0..k} with k >= d, due when d is the deepest chosen tensor.
        branch: (b, n) bool, the other sets.
        branch_time: (b,) their times.
        budget: microseconds for all of these.
    """

    tensors: np.ndarray
    worth: np.ndarray
    cost: np.ndarray
    tail: np.ndarray
    branch: np.ndarray
    branch_time: np.ndarray
    budget: float


def reduce(
    importance: np.ndarray, profile: TimingProfile, required: np.ndarray, limit: float
) -> Problem:
    """The choice among tensors of positive importance, the required ones paid for.

    Args:
        importance: finite, shape (N,).
        profile: times measured on the target device.
        required: bool, shape (N,).
        limit: microseconds of a step, at least the time of the required tensors.
    """
    member, times = incidence(profile)
    due = member[:, required].any(axis=1)
    budget = limit - profile.t_forward - float(times[due].sum())
    tensors = np.flatnonzero((importance > 0.0) & ~required)
    member, times = member[np.ix_(~due, tensors)], times[~due]
    size = np.count_nonzero(member, axis=1)
    member, times, size = member[size > 0], times[size > 0], size[size > 0]
    last = _last(member)
    single = size == 1
    prefix = ~single & (size == last + 1)
    branch = ~single & ~prefix
    return Problem(
        tensors=tensors,
        worth=importance[tensors],
        cost=np.bincount(last[single], times[single], len(tensors)),
        tail=_tail(last[prefix], times[prefix], len(tensors)),
        branch=member[branch],
        branch_time=times[branch],
        budget=budget,
    )


def spent(problem: Problem, chosen: np.ndarray) -> float:
    """Time of the sets that the chosen tensors meet."""
    if not chosen.any():
        return 0.0
    met = (problem.branch & chosen).any(axis=1)
    alone = problem.cost[chosen].sum() + problem.tail[chosen.argmax()]
    return float(alone + problem.branch_time[met].sum())


def fill(problem: Problem, chosen: np.ndarray) -> np.ndarray:
    """`chosen` and further tensors, most importance per added time first, while they fit."""
    chosen = chosen.copy()
    while not chosen.all():
        left = problem.budget - spent(problem, chosen)
        unmet = ~(problem.branch & chosen).any(axis=1)
        paid = problem.tail[chosen.argmax()] if chosen.any() else 0.0
        added = problem.cost + np.maximum(problem.tail - paid, 0.0)
        added += problem.branch_time[unmet] @ problem.branch[unmet]
        fits = np.flatnonzero(~chosen & (added <= left))
        if not len(fits):
            break
        with np.errstate(divide="ignore"):
            fits = fits[np.argsort(-problem.worth[fits] / added[fits], kind="stable")]
        # Together they add no more than the sum of what each adds alone: so many at once.
        chosen[fits[: np.searchsorted(np.cumsum(added[fits]), left, side="right")]] = True
    return chosen


def chain_tail(problem: Problem) -> np.ndarray:
    """(n,) `tail` when each branch set is charged for all tensors before its last, as a chain."""
    last = _last(problem.branch)
    return problem.tail + _tail(last, problem.branch_time, len(problem.worth))


def incidence(profile: TimingProfile) -> tuple[np.ndarray, np.ndarray]:
    """(S, N) bool, which set holds which tensor, and (S,) the times; kept for recent profiles."""
    sets = profile.sets
    for known, member, times in _recent:
        if known is sets:
            return member, times
    sizes = [len(s.tensors) for s in sets]
    flat = itertools.chain.from_iterable(s.tensors for s in sets)
    tensors = np.fromiter(flat, np.intp, sum(sizes))
    member = np.zeros((len(sizes), len(profile.t_dw)), bool)
    member[np.repeat(np.arange(len(sizes)), sizes), np.fromiter(tensors, np.intp, sum(sizes))] = (
        True
    )
    times = np.array([s.time for s in sets], np.float64)
    if isinstance(sets, tuple):  # anything else could change under our hands
        _recent.insert(0, (sets, member, times))
        del _recent[4:]
    return member, times


# Filling the matrix takes longer than solving; a fit selects from one profile again and again.
_recent: list[tuple[tuple, np.ndarray, np.ndarray]] = []


def _last(member: np.ndarray) -> np.ndarray:
    """Largest index in each row's set."""
    if not member.size:
        return np.zeros(len(member), np.intp)
    return member.shape[1] - 1 - member[:, ::-1].argmax(axis=1)


def _tail(last: np.ndarray, times: np.ndarray, count: int) -> np.ndarray:
    """(n,) sum of the times whose `last` is d or later."""
    return np.cumsum(np.bincount(last, times, count)[::-1])[::-1]

"""A timing profile reduced to what the solver has to decide.

The tensors of positive importance, the time that each adds alone, the time that depends only on
the deepest of them, and the few sets of parallel branches that are neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from elastic_tf.timing.profile import TimingProfile


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

    Tensors that do not fit alone are left out.

    Args:
        importance: finite, shape (N,).
        profile: times measured on the target device.
        required: bool, shape (N,).
        limit: microseconds of a step, at least the time of the required tensors.
    """
    sets = sets_of(profile)
    first = int(required.argmax()) if required.any() else len(required)
    due = sets.member[:, required].any(axis=1)
    prefix, member, times = sets.prefix[:first], sets.member[~due], sets.times[~due]
    paid = sets.single[required].sum() + sets.prefix[first:].sum() + sets.times[due].sum()
    budget = limit - profile.t_forward - float(paid)

    alone = sets.single + times @ member
    alone[:first] += _summed_from(prefix)
    tensors = np.flatnonzero((importance > 0.0) & ~required & (alone <= budget))
    count, member = len(tensors), member[:, tensors]
    size, last = np.count_nonzero(member, axis=1), _last(member)
    # The prefixes that are left, by how many tensors they hold.
    held = np.searchsorted(tensors, np.arange(first), side="right")
    size, last = np.concatenate([size, held]), np.concatenate([last, held - 1])
    times, inner = np.concatenate([times, prefix]), size == last + 1
    one, more = size == 1, inner & (size > 1)
    branch = (~inner & (size > 1))[: len(member)]
    return Problem(
        tensors=tensors,
        worth=importance[tensors],
        cost=sets.single[tensors] + np.bincount(last[one], times[one], count),
        tail=_summed_from(np.bincount(last[more], times[more], count)),
        branch=member[branch],
        branch_time=times[: len(member)][branch],
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
    unmet = ~(problem.branch & chosen).any(axis=1)
    while not chosen.all():
        left = problem.budget - spent(problem, chosen)
        paid = problem.tail[chosen.argmax()] if chosen.any() else 0.0
        added = problem.cost + np.maximum(problem.tail - paid, 0.0)
        fits = np.flatnonzero(~chosen & (added <= left))
        open_sets = np.flatnonzero(unmet)
        added = (
            added[fits] + problem.branch_time[open_sets] @ problem.branch[np.ix_(open_sets, fits)]
        )
        fits, added = fits[added <= left], added[added <= left]
        if not len(fits):
            break
        with np.errstate(divide="ignore"):
            order = np.argsort(-problem.worth[fits] / added, kind="stable")
        # Together they add no more than the sum of what each adds alone: so many at once.
        count = np.searchsorted(np.cumsum(added[order]), left, side="right")
        new = fits[order[:count]]
        chosen[new] = True
        unmet &= ~problem.branch[:, new].any(axis=1)
    return chosen


def chain_tail(problem: Problem) -> np.ndarray:
    """(n,) `tail` when each branch set is charged for all tensors before its last, as a chain."""
    last = _last(problem.branch)
    return problem.tail + _summed_from(np.bincount(last, problem.branch_time, len(problem.worth)))


class Sets(NamedTuple):
    """The dependency sets of a profile, sorted by kind.

    Attributes:
        single: (N,) time of the set {k}.
        prefix: (N,) time of the set {0..k}, k > 0.
        member: (b, N) bool, the other sets.
        times: (b,) their times.
    """

    single: np.ndarray
    prefix: np.ndarray
    member: np.ndarray
    times: np.ndarray

    def spent(self, mask: np.ndarray) -> float:
        """Time of the sets that the mask meets."""
        if not mask.any():
            return 0.0
        met = self.member[:, mask].any(axis=1)
        chain = self.single[mask].sum() + self.prefix[mask.argmax() :].sum()
        return float(chain + self.times[met].sum())

    def alone(self) -> np.ndarray:
        """(N,) what `spent` is for each single tensor."""
        return self.single + _summed_from(self.prefix) + self.times @ self.member


def sets_of(profile: TimingProfile) -> Sets:
    """The sets of a profile as arrays; kept for recent profiles."""
    members, times = profile.conditions()
    for known, made in _recent:
        if known is members:
            return made
    made = _sorted_sets(members, times)
    if not members.flags.writeable:  # anything else could change under our hands
        _recent.insert(0, (members, made))
        del _recent[4:]
    return made


# Sorting the sets takes longer than solving; a fit selects from one profile again and again.
_recent: list[tuple[np.ndarray, Sets]] = []


def _sorted_sets(members: np.ndarray, times: np.ndarray) -> Sets:
    count, size, last = members.shape[1], members.sum(axis=1), _last(members)
    one, prefix = size == 1, (size > 1) & (size == last + 1)
    rest = ~(one | prefix)
    return Sets(
        np.bincount(last[one], times[one], count),
        np.bincount(last[prefix], times[prefix], count),
        members[rest],
        times[rest],
    )


def _last(member: np.ndarray) -> np.ndarray:
    """Largest index in each row's set."""
    if not member.size:
        return np.zeros(len(member), np.intp)
    return member.shape[1] - 1 - member[:, ::-1].argmax(axis=1)


def _summed_from(times: np.ndarray) -> np.ndarray:
    """(n,) sum of the times at d and later."""
    return np.cumsum(times[::-1])[::-1]

"""The choice: which tensors to train so that the loss falls most within the time budget.

Knows nothing of Keras or TensorFlow. A profile is anything with `t_forward`, `t_full`, `sets` (each
with `.tensors` and `.time`) and `step_time(mask)`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from elastic_tf.timing import TimingProfile

# Sums of a few thousand float64 times differ in the last digits with the order of summation.
_ROUNDING = 1e-10


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """Which tensors to train, what that is worth and what it costs.

    Attributes:
        mask: True where a tensor is trained; bool, shape (N,), forward order.
        importance: sum of the importance of the trained tensors.
        time: microseconds per step over the dependency sets, at most `budget`.
        budget: microseconds per step that were allowed, rho * t_full.
        upper_bound: no mask within the budget reaches more importance than this.
        solve_seconds: wall-clock time of the solver.
        rho: allowed step time / full step time.
    """

    mask: np.ndarray
    importance: float
    time: float
    budget: float
    upper_bound: float
    solve_seconds: float
    rho: float

    @property
    def gap(self) -> float:
        """Proven distance from the best selection: (upper_bound - importance) / upper_bound."""
        missing = self.upper_bound - self.importance
        return missing / abs(self.upper_bound) if missing > 0.0 else 0.0


class _Chain(NamedTuple):
    """What is left to choose: the tensors of positive importance, with what only they cost."""

    tensors: np.ndarray  # (n,) their indices in the model
    worth: np.ndarray  # (n,) importance, > 0
    cost: np.ndarray  # (n,) time of the sets that hold no other tensor
    tail: np.ndarray  # (n,) time of the prefix sets {0..k}, k >= d: due when d is the deepest
    branch: np.ndarray  # (b, n) bool, the sets that are neither: tensors of parallel branches
    branch_time: np.ndarray  # (b,)
    budget: float  # time left for all of these


def select_tensors(
    importance: np.ndarray,
    profile: TimingProfile,
    rho: float,
    *,
    ticks: int = 10_000,
    required: np.ndarray | None = None,
) -> Selection:
    """Tensors whose training lowers the loss most within `rho` of the full step time.

    maximise sum(importance[mask]) subject to profile.step_time(mask) <= rho * t_full

    A tensor of importance <= 0 is never selected unless `required`. When no tensor has positive
    importance and none is required, the output-most tensor that fits is trained: a step that
    trains nothing would cost its time for nothing.

    Args:
        importance: expected decrease of the loss per tensor; shape (N,), forward order.
        profile: times measured on the target device.
        rho: allowed step time / full step time, in (0, 1].
        ticks: steps into which the backward budget is divided; times are rounded up to them.
        required: True where a tensor is trained whatever its importance; bool, shape (N,).

    Returns:
        The selection, within the budget, with an upper bound on what any other could reach.

    Raises:
        ValueError: an argument is out of range, or the budget admits no tensor; the message then
            names the smallest feasible `rho`.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 6, Eq. (3). One sweep for all depths
    instead of O(N^2 * ticks); rounds up instead of down, so that the budget is kept.
    """
    started = time.perf_counter()
    worth, must = _checked(importance, profile, required)
    check_rho(rho)
    if isinstance(ticks, bool) or not isinstance(ticks, (int, np.integer)) or ticks < 1:
        raise ValueError(f"`ticks` must be an integer of at least 1. Received: ticks={ticks!r}.")
    budget = rho * profile.t_full
    limit = budget + _ROUNDING * profile.t_full
    _check_feasible(worth, profile, rho, limit, must)

    if not (must.any() or (worth > 0.0).any()):
        must = _output_most(profile, limit)
    chain = _reduce(worth, profile, must, limit)
    chosen = _sweep(chain, ticks)
    chosen = _fill(chain, chosen)

    mask = must.copy()
    mask[chain.tensors[chosen]] = True
    reached = math.fsum(worth[mask])
    paid = math.fsum(worth[must])
    bound = max(reached, paid + _bound(chain))
    return Selection(
        mask=mask,
        importance=reached,
        time=min(float(profile.step_time(mask)), budget),
        budget=budget,
        upper_bound=bound,
        solve_seconds=time.perf_counter() - started,
        rho=float(rho),
    )


def smallest_feasible_rho(
    profile: TimingProfile,
    importance: np.ndarray | None = None,
    *,
    required: np.ndarray | None = None,
) -> float:
    """Smallest `rho` for which `select_tensors` finds a selection.

    Args:
        profile: times measured on the target device.
        importance: if given, only tensors of positive importance count; shape (N,).
        required: True where a tensor is trained whatever its importance; bool, shape (N,).

    Returns:
        Time of the cheapest admissible step / full step time.
    """
    count = len(profile.t_dw)
    worth = np.ones(count) if importance is None else importance
    worth, must = _checked(worth, profile, required)
    if must.any():
        return float(profile.step_time(must)) / profile.t_full
    alone = _times_alone(profile)
    candidates = alone[worth > 0.0] if (worth > 0.0).any() else alone
    return float(candidates.min()) / profile.t_full


def check_rho(rho: float, where: str = "") -> None:
    """Raises a ValueError unless `rho` is a number in (0, 1]; `where` says whose it is."""
    number = isinstance(rho, (int, float, np.integer, np.floating)) and not isinstance(rho, bool)
    if not number or not 0.0 < rho <= 1.0:
        raise ValueError(
            f"`rho` must be a number in (0, 1]. Received: rho={rho!r}{where}. "
            "Use 0.5 to halve the step time."
        )


def _checked(
    importance: np.ndarray, profile: TimingProfile, required: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Importance as float64 and `required` as a mask, both of the profile's length."""
    count = len(profile.t_dw)
    worth = np.array(importance, dtype=np.float64)
    if worth.shape != (count,):
        raise ValueError(
            f"`importance` must have shape ({count},), one value for each tensor of the profile. "
            f"Received: shape {worth.shape}."
        )
    if not np.isfinite(worth).all():
        first = int(np.flatnonzero(~np.isfinite(worth))[0])
        raise ValueError(
            f"`importance` must be finite. Received: importance[{first}]={worth[first]}. "
            "Look at the loss on the probe."
        )
    if required is None:
        return worth, np.zeros(count, bool)
    must = np.array(required)
    if must.dtype != np.bool_ or must.shape != (count,):
        raise ValueError(
            f"`required` must be a bool array of shape ({count},). "
            f"Received: {must.dtype} of shape {must.shape}."
        )
    return worth, must


def _check_feasible(
    worth: np.ndarray, profile: TimingProfile, rho: float, limit: float, must: np.ndarray
) -> None:
    smallest = smallest_feasible_rho(profile, worth, required=must)
    if smallest * profile.t_full > limit:
        what = "the required tensors" if must.any() else "any tensor"
        shown = math.ceil(smallest * 1e4) / 1e4
        raise ValueError(
            f"The budget is too small to train {what}. Received: rho={rho}. "
            f"The smallest feasible rho is {shown:.4f}: the forward pass alone takes "
            f"{profile.t_forward / profile.t_full:.4f} of a full step."
        )


_INCIDENCE: list[tuple[tuple, np.ndarray, np.ndarray]] = []


def _incidence(profile: TimingProfile) -> tuple[np.ndarray, np.ndarray]:
    """(S, N) bool: which set holds which tensor; and the sets' times. Kept for recent profiles."""
    sets = profile.sets
    for known, member, times in _INCIDENCE:
        if known is sets:
            return member, times
    sizes = [len(s.tensors) for s in sets]
    flat = np.fromiter(itertools.chain.from_iterable(s.tensors for s in sets), np.intp, sum(sizes))
    member = np.zeros((len(sizes), len(profile.t_dw)), bool)
    member[np.repeat(np.arange(len(sizes)), sizes), flat] = True
    times = np.array([s.time for s in sets], np.float64)
    if isinstance(sets, tuple):
        _INCIDENCE.insert(0, (sets, member, times))
        del _INCIDENCE[4:]
    return member, times


def _times_alone(profile: TimingProfile) -> np.ndarray:
    """(N,) step time when a single tensor is trained."""
    member, times = _incidence(profile)
    alone = np.array([times[column].sum() for column in member.T])
    return profile.t_forward + alone


def _output_most(profile: TimingProfile, limit: float) -> np.ndarray:
    """Mask of the tensor nearest to the output that fits."""
    mask = np.zeros(len(profile.t_dw), bool)
    mask[np.flatnonzero(_times_alone(profile) <= limit)[-1]] = True
    return mask


def _reduce(worth: np.ndarray, profile: TimingProfile, must: np.ndarray, limit: float) -> _Chain:
    """Pays for the required tensors and drops what cannot be selected."""
    member, times = _incidence(profile)
    due = member[:, must].any(axis=1)
    budget = limit - profile.t_forward - float(times[due].sum())
    tensors = np.flatnonzero((worth > 0.0) & ~must)
    member, times = member[~due][:, tensors], times[~due]
    size = np.count_nonzero(member, axis=1)
    member, times, size = member[size > 0], times[size > 0], size[size > 0]
    count = len(tensors)
    last = count - 1 - member[:, ::-1].argmax(axis=1)
    single = size == 1
    prefix = ~single & (size == last + 1)
    cost = np.bincount(last[single], times[single], count)
    step = np.bincount(last[prefix], times[prefix], count)
    rest = ~(single | prefix)
    return _Chain(
        tensors=tensors,
        worth=worth[tensors],
        cost=cost,
        tail=np.cumsum(step[::-1])[::-1],
        branch=member[rest],
        branch_time=times[rest],
        budget=budget,
    )


def _chain_tail(chain: _Chain) -> np.ndarray:
    """(n,) time due when d is the deepest tensor, every branch set charged down to its last."""
    count = len(chain.worth)
    if not len(chain.branch) or not count:
        return chain.tail
    last = count - 1 - chain.branch[:, ::-1].argmax(axis=1)
    step = np.bincount(last, chain.branch_time, count)
    return chain.tail + np.cumsum(step[::-1])[::-1]


def _sweep(chain: _Chain, ticks: int) -> np.ndarray:
    """Best mask of the chain, (n,) bool: one knapsack row from the output to the input.

    row[b] is the most importance within b ticks over the tensors after d; at each d it is asked
    once, for what the budget leaves when d is the deepest.
    """
    count = len(chain.worth)
    chosen = np.zeros(count, bool)
    tick = chain.budget / ticks
    if not count or tick <= 0.0:
        return chosen
    room = (chain.budget - _chain_tail(chain)) / tick
    own = chain.cost / tick
    steps = np.ceil(own)
    row = np.zeros(ticks + 1)
    fresh = np.empty(ticks + 1)
    taken = np.zeros((count, ticks + 1), bool)
    best, deepest, start = 0.0, -1, 0
    for k in range(count - 1, -1, -1):
        if room[k] < 0.0:
            break
        if own[k] > room[k]:
            continue
        left = int(room[k] - own[k])
        value = row[left] + chain.worth[k]
        if value > best:
            best, deepest, start = value, k, left
        size = int(room[k]) + 1
        shift = int(steps[k])
        if shift >= size:
            continue
        with_k = np.add(row[: size - shift], chain.worth[k], out=fresh[: size - shift])
        without_k = row[shift:size]
        np.greater(with_k, without_k, out=taken[k, shift:size])
        np.maximum(with_k, without_k, out=without_k)
    if deepest < 0:
        return chosen
    chosen[deepest] = True
    left = start
    for k in range(deepest + 1, count):
        if taken[k, left]:
            chosen[k] = True
            left -= int(steps[k])
    return chosen


def _spent(chain: _Chain, chosen: np.ndarray) -> float:
    """Time of the chosen tensors over all sets."""
    if not chosen.any():
        return 0.0
    hit = chain.branch[:, chosen].any(axis=1)
    return float(
        chain.cost[chosen].sum() + chain.tail[chosen.argmax()] + chain.branch_time[hit].sum()
    )


def _fill(chain: _Chain, chosen: np.ndarray) -> np.ndarray:
    """Adds tensors while their exact marginal time fits, best importance per time first."""
    chosen = chosen.copy()
    if not len(chosen):
        return chosen
    while True:
        left = chain.budget - _spent(chain, chosen)
        missed = ~chain.branch[:, chosen].any(axis=1)
        extra = chain.cost + chain.branch_time[missed] @ chain.branch[missed]
        extra += np.maximum(chain.tail - (chain.tail[chosen.argmax()] if chosen.any() else 0.0), 0.0)
        fits = np.flatnonzero(~chosen & (extra <= left))
        if not len(fits):
            return chosen
        with np.errstate(divide="ignore"):
            chosen[fits[np.argmax(chain.worth[fits] / extra[fits])]] = True


def _bound(chain: _Chain) -> float:
    """Upper bound on the importance: for each depth, the Lagrangian of the budget.

    With d the deepest tensor its own sets are due, and for any price >= 0 no choice of the tensors
    after it is worth more than price * room + sum(max(0, worth - price * cost)).
    """
    count = len(chain.worth)
    if not count:
        return 0.0
    own = chain.tail + chain.cost + chain.branch_time @ chain.branch
    room = chain.budget - own
    ratio = chain.worth / np.maximum(chain.cost, 1e-12 * max(chain.budget, 1e-300))
    prices = np.concatenate([[0.0], np.unique(np.quantile(ratio, np.linspace(0, 1, 65)))])
    gain = np.maximum(chain.worth - prices[:, None] * chain.cost, 0.0)
    after = np.cumsum(gain[:, ::-1], axis=1)[:, ::-1] - gain
    best = (prices[:, None] * np.maximum(room, 0.0) + after).min(axis=0) + chain.worth
    best = best[room >= 0.0]
    return float(best.max()) if len(best) else 0.0

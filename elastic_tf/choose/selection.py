"""The choice: the plan that lowers the loss most within the time budget."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.choose.problem import Choices, Problem, Solution, reduce
from elastic_tf.choose.solvers import best_choices, in_order, recurrence, solve
from elastic_tf.plan import Plan

if TYPE_CHECKING:
    from elastic_tf.memory import Limit
    from elastic_tf.timing.profile import TimingProfile

# Sums of a few thousand float64 times differ in the last digits with the order of summation.
_ROUNDING = 1e-10
_MOST_WORTH = 1e100  # sums and quotients of such numbers are still finite
_WORTH: Any = {"low": -_MOST_WORTH, "high": _MOST_WORTH, "hint": "Look at the loss on the probe."}
_TRIES = 8  # selections, at most
_LEFT = 0.01  # of the limit: so much room is not worth another selection
_CANDIDATES = 4  # single tensors looked at for the smallest step


def _of_tensors(
    solved: Callable[[Problem], Solution],
    choices: Choices,
    worth: np.ndarray,
    room: np.ndarray,
    required: np.ndarray,
) -> Solution:
    """What a solver of the plain problem chooses beside the required tensors."""
    problem = reduce(choices, worth, room, required)
    chosen, bound = solved(problem)
    every = required.copy()
    every[problem.index[chosen]] = True
    return Solution(every, bound * problem.scale + math.fsum(worth[required]))


def _exact(choices: Choices, worth: np.ndarray, room: np.ndarray, required: np.ndarray) -> Solution:
    if len(room) == 1:
        return _of_tensors(solve, choices, worth, room, required)
    return best_choices(choices, worth, room, required)


# (choices, worth, room, required) -> the best choices beside the required ones
STRATEGIES: dict[str, Callable[..., Solution]] = {
    "exact": _exact,
    "paper": functools.partial(_of_tensors, recurrence),
    "order": in_order,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """What to train, what that is worth and what it costs."""

    plan: Plan  #: how each tensor is trained
    importance: float  #: sum of the importance of the trained tensors
    time: float  #: predicted microseconds per step, at most `budget`
    budget: float  #: microseconds per step that were allowed, rho * t_full
    rho: float  #: allowed step time / full step time
    upper_bound: float  #: no plan within the budget reaches more importance
    #: Proven share of the importance that may be missing, counting no tensor that only fills the
    #: budget.
    gap: float
    solve_seconds: float  #: wall-clock time that it took

    @property
    def mask(self) -> np.ndarray:
        """True where a tensor is trained; bool, shape (N,), read-only."""
        return self.plan.mask


def select_tensors(
    importance: np.ndarray,
    profile: TimingProfile,
    rho: float,
    *,
    required: np.ndarray | None = None,
    strategy: str = "exact",
    memory: Limit | None = None,
) -> Selection:
    """Tensors whose training lowers the loss most within `rho` of the full step time.

    maximise sum(importance[mask]) subject to profile.step_time(mask) <= rho * t_full

    Tensors of positive importance come first. Others fill the time that is left, by the rank of
    their importance, because the sign of a small importance is mostly noise.

    Args:
        importance: expected decrease of the loss per tensor; shape (N,), forward order.
        profile: times measured on the target device.
        rho: allowed step time / full step time, in (0, 1].
        required: True where a tensor is always trained; bool, shape (N,).
        strategy: "exact", to a gap of 0.1 % wherever a bounded amount of work suffices; "paper",
            the dynamic program of the method's paper, which sees branches as a chain; or "order",
            the tensors from the largest importance to the smallest, each that still fits.
        memory: an `et.memory.Limit` that the step must keep; not with "paper".

    Returns:
        The selection, within the budget, and how far any other could be ahead at most; within
        `memory` that counts the plans of as many kept bytes.

    Raises:
        ValueError: an argument is out of range, or the budget admits no tensor; the message then
            names the smallest feasible `rho`, or limit of memory.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 6, Eq. (3), over the profile's cost
    items instead of a chain.
    """
    started = time.perf_counter()
    arguments.choice("strategy", strategy, STRATEGIES)
    must = _required(profile, required)
    count = profile.count
    worth = arguments.numbers("importance", importance, size=count, **_WORTH)
    arguments.rho("rho", rho)
    budget = float(rho) * profile.t_full
    limit = budget + _ROUNDING * profile.t_full
    if profile.step_time(must) > limit:
        raise _too_small(profile, rho, must)
    members, times = profile.conditions
    choices = Choices(np.arange(count), members, times[:, None])
    if memory is not None:
        choices = _with_bytes(choices, memory, strategy)
    ranks = 1.0 + np.unique(worth, return_inverse=True)[1]
    left, solved = limit - profile.t_forward, STRATEGIES[strategy]

    def within(space: float, certain: np.ndarray) -> Selection | None:
        """The best selection within the time, and so many kept bytes."""
        room = np.array([left, space][: choices.cost.shape[1]])
        best, bound = solved(choices, worth, room, certain)
        reached = math.fsum(worth[best])
        mask, _ = solved(choices, ranks, room, best)
        if not mask.any():
            return None
        return Selection(
            plan=Plan.from_mask(mask),
            importance=math.fsum(worth[mask]),
            time=min(profile.step_time(mask), budget),
            budget=budget,
            rho=float(rho),
            upper_bound=max(reached, bound),
            gap=(bound - reached) / max(abs(bound), abs(reached)) if bound > reached else 0.0,
            solve_seconds=time.perf_counter() - started,
        )

    if memory is None:
        found = within(0.0, must)
    else:
        fits = np.array([profile.step_time(row) <= limit for row in np.eye(count) > 0])
        found = _best_within(memory, within, must, fits)
    if found is None:
        raise _too_small(profile, rho, must)
    return found


def _with_bytes(choices: Choices, memory: Limit, strategy: str) -> Choices:
    """The same choices with kept bytes as second resource."""
    if strategy == "paper":
        raise ValueError(
            "`strategy` must be 'exact' or 'order' where `memory` is limited: the paper's has one "
            "resource. Received: strategy='paper'. Leave one of the two out."
        )
    if not hasattr(memory, "items"):
        raise ValueError(
            "`memory` must be an et.memory.Limit, which knows the model. Received: "
            f"{arguments.brief(memory)}. Use et.memory.Limit(memory, model, (x, y))."
        )
    kept, sizes = memory.items
    cost = np.zeros((len(choices.cost) + len(sizes), 2))
    cost[: len(choices.cost), :1], cost[len(choices.cost) :, 1] = choices.cost, sizes
    return choices._replace(member=np.vstack([choices.member, kept]), cost=cost)


def _best_within(
    memory: Limit,
    select: Callable[[float, np.ndarray], Any],
    required: np.ndarray,
    affordable: np.ndarray,
) -> Any:
    """The most important selection found whose peak is within the limit; None where none fits.

    What a step keeps for its gradients is a sum over cost items; its peak is not, for the fullest
    moment may be another one. So the selector gets room for so many kept bytes, the peak of what it
    chose is computed, and the room follows from how far that is from the limit. Each of the
    `affordable` tensors alone is within the time.
    """
    members, sizes = memory.items

    def kept(mask: np.ndarray) -> float:
        return float(sizes[members[:, mask].any(axis=1)].sum())

    def peak(mask: np.ndarray) -> int:
        return memory.peak(Plan.from_mask(mask))

    tried = [required]
    if not required.any():
        tried = sorted(np.eye(len(required), dtype=bool)[affordable], key=kept)[:_CANDIDATES]
    if not tried:
        return None
    least = min(tried, key=peak)
    if peak(least) > memory.bytes:
        tenths = (math.ceil(10 * size / 2**20) for size in (memory.bytes, peak(least)))
        given, smallest = (f"{one / 10:.1f} MiB" for one in tenths)
        raise ValueError(
            f"`memory` is too small to train {_said(required)}. Received: {given}; the "
            f"smallest feasible limit is {smallest}, weights and slots included. Give more, a "
            "smaller batch, or an optimizer with fewer slots."
        )
    low, high = kept(least), float(sizes.sum())
    best, room = None, high
    for _ in range(_TRIES):
        found = select(room, required)
        if found is None:
            break
        over = memory.peak(found.plan) - memory.bytes
        if over <= 0:
            if best is None or found.importance >= best.importance:
                best = found
            if room >= high:
                break
            low, room = room, room - over
        else:
            high = min(room, kept(found.mask))
            room = high - over
        if high - low < _LEFT * memory.bytes:
            break
        if not low < room < high:
            room = (low + high) / 2
    return best or select(kept(least), least)


def smallest_feasible_rho(profile: TimingProfile, required: np.ndarray | None = None) -> float:
    """Smallest `rho` for which `select_tensors`, of the same arguments, finds a selection."""
    must = _required(profile, required)
    if must.any():
        return profile.step_time(must) / profile.t_full
    members, times = profile.conditions
    return (profile.t_forward + float((times @ members).min())) / profile.t_full


def _required(profile: TimingProfile, required: np.ndarray | None) -> np.ndarray:
    if not hasattr(profile, "step_time"):
        raise TypeError(
            f"`profile` must be a TimingProfile. Received: {arguments.brief(profile)}. Measure one "
            "with elastic_tf.profile_model, or read one: TimingProfile.load."
        )
    if required is None:
        return np.zeros(profile.count, bool)
    return arguments.mask("required", required, profile.count)


def _said(required: np.ndarray) -> str:
    return f"the {required.sum()} required tensors" if required.any() else "any tensor"


def _too_small(profile: TimingProfile, rho: float, required: np.ndarray) -> ValueError:
    smallest = smallest_feasible_rho(profile, required)
    return ValueError(
        f"The budget is too small to train {_said(required)}. Received: rho={rho}. The "
        f"smallest feasible rho is {math.ceil(smallest * 1e4) / 1e4:.4f}; the forward pass alone "
        f"takes {profile.t_forward / profile.t_full:.4f} of a full step. Give a larger rho, or "
        "train on et.Samples for more epochs: what comes before the first trained tensor is kept."
    )

"""The choice: the plan that lowers the loss most within the time budget."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from elastic_tf import arguments
from elastic_tf.plan import Plan
from elastic_tf.selection.dynamic_program import recurrence
from elastic_tf.selection.problem import Problem, Solution, in_order, reduce
from elastic_tf.selection.solver import solve

if TYPE_CHECKING:
    from elastic_tf.timing.profile import TimingProfile

STRATEGIES: dict[str, Callable[[Problem], Solution]] = {
    "exact": solve,
    "paper": recurrence,
    "order": in_order,
}
# Sums of a few thousand float64 times differ in the last digits with the order of summation.
_ROUNDING = 1e-10
_MOST_WORTH = 1e100  # sums and quotients of such numbers are still finite
_USED = ("count", "t_forward", "t_full", "conditions", "step_time")  # of a profile


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """What to train, what that is worth and what it costs.

    Attributes:
        plan: how each tensor is trained.
        importance: sum of the importance of the trained tensors.
        time: predicted microseconds per step, at most `budget`.
        budget: microseconds per step that were allowed, rho * t_full.
        rho: allowed step time / full step time.
        upper_bound: no plan within the budget reaches more importance.
        gap: proven share of the importance that may be missing, counting no tensor that only fills
            the budget.
        solve_seconds: wall-clock time that it took.
    """

    plan: Plan
    importance: float
    time: float
    budget: float
    rho: float
    upper_bound: float
    gap: float
    solve_seconds: float

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
) -> Selection:
    """Tensors whose training lowers the loss most within `rho` of the full step time.

    maximise sum(importance[mask]) subject to profile.step_time(mask) <= rho * t_full

    Among the tensors of positive importance first; where these leave time, others fill it by the
    rank of their importance, for the sign of a small importance is mostly noise.

    Args:
        importance: expected decrease of the loss per tensor; shape (N,), forward order.
        profile: times measured on the target device.
        rho: allowed step time / full step time, in (0, 1].
        required: True where a tensor is trained whatever its importance; bool, shape (N,).
        strategy: "exact", to a gap of 0.1 % wherever a bounded amount of work suffices; "paper",
            the dynamic program of the method's paper, which sees branches as a chain; or "order",
            the tensors from the largest importance to the smallest, each that still fits.

    Returns:
        The selection, within the budget, and how far any other could be ahead at most.

    Raises:
        ValueError: an argument is out of range, or the budget admits no tensor; the message then
            names the smallest feasible `rho`.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 6, Eq. (3), over the profile's cost
    items instead of a chain.
    """
    started = time.perf_counter()
    must = _required(profile, required)
    worth = arguments.numbers(
        "importance",
        importance,
        shape=(profile.count,),
        low=-_MOST_WORTH,
        high=_MOST_WORTH,
        hint="Look at the loss on the probe.",
    )
    arguments.rho("rho", rho)
    arguments.choice("strategy", strategy, STRATEGIES)
    budget = float(rho) * profile.t_full
    limit = budget + _ROUNDING * profile.t_full
    if profile.step_time(must) > limit:
        raise _too_small(profile, rho, must)

    def extended(mask: np.ndarray, worth: np.ndarray) -> tuple[np.ndarray, float]:
        """The mask with the best of the others, and the most that these can be worth."""
        members, times = profile.conditions()
        room = np.array([limit - profile.t_forward])
        problem = reduce(worth, np.arange(len(worth)), members, times[:, None], room, mask)
        solution = STRATEGIES[strategy](problem)
        added = np.isin(np.arange(len(worth)), problem.index[solution.chosen])
        return mask | added, solution.bound * problem.scale

    best, bound = extended(must, worth)
    reached, bound = math.fsum(worth[best]), bound + math.fsum(worth[must])
    mask, _ = extended(best, 1.0 + np.unique(worth, return_inverse=True)[1])
    if not mask.any():
        raise _too_small(profile, rho, must)
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


def smallest_feasible_rho(profile: TimingProfile, required: np.ndarray | None = None) -> float:
    """Smallest `rho` for which `select_tensors`, of the same arguments, finds a selection."""
    must = _required(profile, required)
    if must.any():
        return profile.step_time(must) / profile.t_full
    members, times = profile.conditions()
    return (profile.t_forward + float((times @ members).min())) / profile.t_full


def _required(profile: TimingProfile, required: np.ndarray | None) -> np.ndarray:
    arguments.profile("profile", profile, *_USED)
    if required is None:
        return np.zeros(profile.count, bool)
    return arguments.mask("required", required, profile.count)


def _too_small(profile: TimingProfile, rho: float, required: np.ndarray) -> ValueError:
    smallest = smallest_feasible_rho(profile, required)
    what = f"the {required.sum()} required tensors" if required.any() else "any tensor"
    return ValueError(
        f"The budget is too small to train {what}. Received: rho={rho}. The smallest feasible rho "
        f"is {math.ceil(smallest * 1e4) / 1e4:.4f}; the forward pass alone takes "
        f"{profile.t_forward / profile.t_full:.4f} of a full step. Give a larger rho, or train on "
        "et.Samples, which keeps what comes before the first trained tensor."
    )

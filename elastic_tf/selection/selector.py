"""The choice: which tensors to train so that the loss falls most within the time budget.

Knows nothing of Keras or TensorFlow. A profile is anything with `t_forward`, `t_full`, `sets` (each
with `.tensors` and `.time`) and `step_time(mask)`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import TYPE_CHECKING

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.selection.branch_and_bound import improve
from elastic_tf.selection.dynamic_program import sweep
from elastic_tf.selection.problem import fill, reduce, sets_of

if TYPE_CHECKING:
    from elastic_tf.timing.profile import TimingProfile

# Sums of a few thousand float64 times differ in the last digits with the order of summation.
_ROUNDING = 1e-10
_MOST_WORTH = 1e100  # sums and quotients of such numbers are still finite
_USED = ("t_dw", "t_forward", "t_full", "conditions", "step_time")  # of a profile
_MOST_TICKS = 10**7  # one row of them takes 80 MB


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
        """Proven share of the importance that the selection can be short of the best one."""
        missing = self.upper_bound - self.importance
        scale = max(abs(self.upper_bound), abs(self.importance))
        return missing / scale if missing > 0.0 else 0.0


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
    importance and none is required, the one that does least harm is trained, of equal ones the
    output-most: a step that trains nothing would cost its time for nothing.

    The best selection over the dependency sets is searched within a fixed amount of work, which
    suffices for chains and residual networks of some hundred tensors. Where it does not, `gap`
    tells how much better another selection could be at most.

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
    ticks = arguments.count("ticks", ticks, most=_MOST_TICKS)
    rho = float(rho)
    budget = rho * profile.t_full
    limit = budget + _ROUNDING * profile.t_full

    if not (must.any() or (worth > 0.0).any()):
        must = _least_harm(worth, profile, limit)
    problem = reduce(worth, profile, must, limit)
    if problem.budget < 0.0:
        raise _too_small(worth, profile, rho, required)
    chosen, bound = improve(problem, fill(problem, sweep(problem, ticks)))
    if not (must.any() or chosen.any()):
        raise _too_small(worth, profile, rho, required)

    mask = must.copy()
    mask[problem.tensors[chosen]] = True
    reached = math.fsum(worth[mask])
    return Selection(
        mask=mask,
        importance=reached,
        time=min(_step_time(profile, mask), budget),
        budget=budget,
        upper_bound=max(reached, math.fsum(worth[must]) + bound),
        solve_seconds=time.perf_counter() - started,
        rho=rho,
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
    arguments.profile("profile", profile, *_USED)
    worth = np.ones(len(profile.t_dw)) if importance is None else importance
    worth, must = _checked(worth, profile, required)
    if must.any():
        return _step_time(profile, must) / profile.t_full
    alone = _times_alone(profile)
    candidates = alone[worth > 0.0] if (worth > 0.0).any() else alone
    return float(candidates.min()) / profile.t_full


def check_rho(rho: float, where: str = "") -> None:
    """Raises a ValueError unless `rho` is a number in (0, 1]; `where` says whose it is."""
    arguments.text("where", where)
    number = isinstance(rho, (int, float, np.integer, np.floating)) and not isinstance(rho, bool)
    if not number or not 0.0 < rho <= 1.0:
        raise ValueError(
            f"`rho` must be a number in (0, 1]. Received: rho={brief(rho)}{where}. "
            "Use 0.5 to halve the step time."
        )


def _checked(
    importance: np.ndarray, profile: TimingProfile, required: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Importance as float64 and `required` as a mask, both of the profile's length."""
    arguments.profile("profile", profile, *_USED)
    count = len(profile.t_dw)
    worth = arguments.numbers(
        "importance",
        importance,
        shape=(count,),
        low=-_MOST_WORTH,
        high=_MOST_WORTH,
        hint="Look at the loss on the probe.",
    )
    if required is None:
        return worth, np.zeros(count, bool)
    return worth, arguments.mask("required", required, count)


def _too_small(
    worth: np.ndarray, profile: TimingProfile, rho: float, required: np.ndarray | None
) -> ValueError:
    smallest = smallest_feasible_rho(profile, worth, required=required)
    if required is not None and np.any(required):
        what = "the required tensors"
        also = f", required of shape {np.shape(required)}, {np.sum(required)} of it True"
    else:
        also = ""
        what = "any tensor of positive importance" if (worth > 0.0).any() else "any tensor"
    return ValueError(
        f"The budget is too small to train {what}. Received: rho={rho}{also}. The smallest "
        f"feasible rho is {math.ceil(smallest * 1e4) / 1e4:.4f}; the forward pass alone takes "
        f"{profile.t_forward / profile.t_full:.4f} of a full step. Give a larger rho."
    )


def _step_time(profile: TimingProfile, mask: np.ndarray) -> float:
    """`profile.step_time(mask)` without a loop over the sets."""
    return profile.t_forward + sets_of(profile).spent(mask)


def _times_alone(profile: TimingProfile) -> np.ndarray:
    """(N,) step time when a single tensor is trained."""
    return profile.t_forward + sets_of(profile).alone()


def _least_harm(worth: np.ndarray, profile: TimingProfile, limit: float) -> np.ndarray:
    """Mask of the most important single tensor that fits, of equal ones the output-most."""
    fits = np.where(_times_alone(profile) <= limit, worth, -np.inf)
    mask = np.zeros(len(worth), bool)
    mask[len(fits) - 1 - np.argmax(fits[::-1])] = True
    return mask

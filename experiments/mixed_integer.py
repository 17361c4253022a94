"""The selection as a mixed-integer program: the reference for the selector."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array


def optimum(
    importance: np.ndarray, profile: Any, rho: float, *, seconds: float = 30.0, gap: float = 1e-7
) -> float:
    """Importance of the best selection, or of the best that the solver finds in time.

    Args:
        importance: shape (N,).
        profile: anything with `t_forward`, `t_full` and `conditions`.
        rho: allowed step time / full step time.
        seconds: after which the solver stops.
        gap: relative, at which it stops.
    """
    members, times = profile.conditions
    budget = np.array([rho * profile.t_full - profile.t_forward])
    tensor = np.arange(len(importance))
    return best(importance, tensor, members, times[:, None], budget, seconds=seconds, gap=gap)


def best(
    worth: np.ndarray,
    tensor: np.ndarray,
    member: np.ndarray,
    cost: np.ndarray,
    budget: np.ndarray,
    *,
    seconds: float = 30.0,
    gap: float = 1e-7,
) -> float:
    """Worth of the best choices, at most one for each tensor, or of the best found in time.

    maximise worth @ x subject to cost.T @ y <= budget, x[k] <= y[s] for all k that need item s,
    x binary.

    Args:
        worth: (n,) of the choices.
        tensor: (n,) the tensor that each is for.
        member: (S, n) bool, the choices that need each item.
        cost: (S, R) of the items.
        budget: (R,).
        seconds: after which the solver stops.
        gap: relative, at which it stops.
    """
    count, items = member.shape[1], len(member)
    item, choice = np.nonzero(member)
    pairs = np.arange(len(item))
    links = coo_array(
        (
            np.repeat([1.0, -1.0], len(pairs)),
            (np.tile(pairs, 2), np.concatenate([choice, count + item])),
        ),
        shape=(len(pairs), count + items),
    )
    once = coo_array(
        (np.ones(count), (tensor, np.arange(count))), shape=(max(tensor) + 1, count + items)
    )
    result = milp(
        -np.concatenate([worth, np.zeros(items)]),
        integrality=np.repeat([1, 0], [count, items]),
        bounds=Bounds(0.0, 1.0),
        constraints=[
            LinearConstraint(links.tocsr(), -np.inf, 0.0),
            LinearConstraint(once.tocsr(), -np.inf, 1.0),
            LinearConstraint(np.hstack([np.zeros((len(budget), count)), cost.T]), -np.inf, budget),
        ],
        options={"mip_rel_gap": gap, "time_limit": seconds},
    )
    return -float(result.fun) if result.x is not None else -np.inf

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
    members, times = profile.conditions()
    budget = rho * profile.t_full - profile.t_forward
    return best(importance, members, times, budget, seconds=seconds, gap=gap)


def best(
    worth: np.ndarray,
    member: np.ndarray,
    cost: np.ndarray,
    budget: float,
    *,
    seconds: float = 30.0,
    gap: float = 1e-7,
) -> float:
    """Worth of the best tensors, or of the best found in time.

    maximise worth @ x subject to cost @ y <= budget, x[k] <= y[s] for all k that need item s,
    x binary.

    Args:
        worth: (n,) of the tensors.
        member: (S, n) bool, the tensors that need each item.
        cost: (S,) of the items.
        budget: for the items.
        seconds: after which the solver stops.
        gap: relative, at which it stops.
    """
    count, items = member.shape[1], len(member)
    item, tensor = np.nonzero(member)
    pairs = np.arange(len(item))
    links = coo_array(
        (
            np.repeat([1.0, -1.0], len(pairs)),
            (np.tile(pairs, 2), np.concatenate([tensor, count + item])),
        ),
        shape=(len(pairs), count + items),
    )
    result = milp(
        -np.concatenate([worth, np.zeros(items)]),
        integrality=np.repeat([1, 0], [count, items]),
        bounds=Bounds(0.0, 1.0),
        constraints=[
            LinearConstraint(links.tocsr(), -np.inf, 0.0),
            LinearConstraint(np.concatenate([np.zeros(count), cost])[None], -np.inf, budget),
        ],
        options={"mip_rel_gap": gap, "time_limit": seconds},
    )
    return -float(result.fun) if result.x is not None else -np.inf

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

    maximise importance @ x subject to time @ y <= rho * t_full - t_forward, x[k] <= y[s] for all
    k in s, x binary.

    Args:
        importance: shape (N,).
        profile: anything with `t_forward`, `t_full` and `conditions`.
        rho: allowed step time / full step time.
        seconds: after which the solver stops.
        gap: relative, at which it stops.
    """
    members, times = profile.conditions()
    count, sets = len(importance), len(times)
    owner, tensor = np.nonzero(members)
    rows = np.arange(len(owner))
    links = coo_array(
        (
            np.repeat([1.0, -1.0], len(rows)),
            (np.tile(rows, 2), np.concatenate([tensor, count + owner])),
        ),
        shape=(len(rows), count + sets),
    )
    cost = np.concatenate([np.zeros(count), times])[None]
    result = milp(
        -np.concatenate([importance, np.zeros(sets)]),
        integrality=np.repeat([1, 0], [count, sets]),
        bounds=Bounds(0.0, 1.0),
        constraints=[
            LinearConstraint(links.tocsr(), -np.inf, 0.0),
            LinearConstraint(cost, -np.inf, rho * profile.t_full - profile.t_forward),
        ],
        options={"mip_rel_gap": gap, "time_limit": seconds},
    )
    return -float(result.fun) if result.x is not None else -np.inf

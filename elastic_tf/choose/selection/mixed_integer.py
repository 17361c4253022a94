"""The selection where memory is limited, or shares of a tensor can be chosen: an integer program.

maximise worth @ x, x of the choices and y of the items binary, subject to

* cost.T @ y <= room, and at most one choice for each tensor;
* x[k] <= y[s] for the choices that need an item: of items that need each other's choices, one
  inside the next, y of the smaller <= y of the larger says the same in fewer rows.
"""

from __future__ import annotations

import numpy as np

from elastic_tf.choose.selection.problem import Choices, Solution

GAP = 1e-3  # proven share of the worth that may be missing
_NODES = 1_000  # of the search, counted rather than timed
_UNIT = 1e3  # of room: the program keeps its rows to 1e-6
_SAFE = 1e-5  # of room, where a row was not kept


def best_choices(
    choices: Choices, worth: np.ndarray, room: np.ndarray, required: np.ndarray, gap: float = GAP
) -> Solution:
    """Choices worth at least 1 - gap of the best ones, or what a bounded search suffices for.

    (n,) finite `worth`; (R,) `room`, at least the cost of the required choices, (n,) bool.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes long to load

    keep, owner = np.unique(choices.member, axis=0, return_inverse=True)
    count, items = len(worth), len(keep)
    cost = np.zeros((items, len(room)))
    np.add.at(cost, owner.ravel(), choices.cost)
    unit = np.where(room > 0.0, room / _UNIT, 1.0)
    part, columns = keep.astype(np.float64), count + items
    inside = (part @ part.T >= part.sum(axis=1)[:, None]) & ~np.eye(items, dtype=bool)
    # neither through another item between, nor beside one that the choice needs as well
    smaller, larger = np.nonzero(inside & (inside.astype(float) @ inside == 0.0))
    larger_of, choice = np.nonzero(keep & (inside.T.astype(float) @ part == 0.0))
    low = np.concatenate([choice, count + smaller])
    high = count + np.concatenate([larger_of, larger])
    spent = np.zeros((len(room), columns))
    spent[:, count:] = cost.T / unit[:, None]
    needs = np.zeros((len(low), columns))
    needs[np.arange(len(low)), low] = 1.0
    needs[np.arange(len(low)), high] = -1.0
    once = np.zeros((int(choices.tensor.max()) + 1, columns))
    once[choices.tensor, np.arange(count)] = 1.0

    may = required | (worth > 0.0)
    able = may & (choices.member.T @ choices.cost <= room).all(axis=1)
    scale = float(np.abs(worth[able]).max(initial=0.0)) or 1.0
    upper, lower = np.append(may, np.ones(items)), np.append(required, np.zeros(items))
    value = np.append(worth, np.zeros(items)) / scale
    for safe in (0.0, _SAFE):
        found = milp(
            -value,
            integrality=np.ones(columns),
            bounds=Bounds(lower, upper),
            constraints=[
                LinearConstraint(needs, -np.inf, 0.0),
                LinearConstraint(once, -np.inf, 1.0),
                LinearConstraint(spent, -np.inf, (1.0 - safe) * room / unit),
            ],
            options={"mip_rel_gap": gap, "node_limit": _NODES},
        )
        chosen = required if found.x is None else found.x[:count] > 0.5
        if (choices.spent(chosen) <= room).all():
            break
    else:
        chosen = required
    reached = float(worth[chosen].sum())
    bound = np.inf if found.mip_dual_bound is None else -scale * found.mip_dual_bound
    return Solution(chosen, max(reached, min(bound, float(worth[may].sum()))))

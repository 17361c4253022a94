"""The selection as the paper publishes it, for comparison with `elastic_tf.select_tensors`.

Written from the text of Huang et al., ElasticTrainer, MobiSys 2023, Sec. 6: subproblems P[k, t],
both kinds of pruning, times rounded down to a resolution of T_q.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def paper_selection(
    importance: np.ndarray, profile: Any, rho: float, resolution: int
) -> np.ndarray:
    """Tensors that the recurrence of Sec. 6.2 selects.

    P[k, t] is the most importance among the k output-most tensors within t of the backward pass.
    Tensor k is left: P[k-1, t]. Or it is taken: P[k_c, t - dt] plus its importance for the best
    closest selected tensor k_c, dt = t_dw of k and t_dy of the tensors from k_c to k-1 (Eq. 7).

    The text leaves open what is selected in P[k_c, .] when tensor k builds on it; here k_c itself
    is, so that the gradient's way is paid once. Tensor k as the first one pays all t_dy after it.
    The time of the whole step, T, is scaled to `resolution`, and times are rounded down (Eq. 8).

    Args:
        importance: shape (N,), forward order.
        profile: anything with `t_dw`, `t_dy`, `t_forward` and `t_full`.
        rho: allowed step time / full step time.
        resolution: T_q.

    Returns:
        Bool, shape (N,); it can exceed the budget, because times are rounded down.
    """
    count = len(importance)
    scale = resolution / profile.t_full
    # Output first, as the paper counts.
    t_dw = np.floor(profile.t_dw[::-1] * scale).astype(int)
    # A tensor's own t_dy stands for the ops between it and the next one towards the output.
    t_dy = np.floor(profile.t_dy[::-1] * scale).astype(int)
    worth = np.asarray(importance, np.float64)[::-1]
    way = np.cumsum(t_dy)  # of the gradient from the loss to tensor k
    # Invalid subproblems: t beyond what the forward pass leaves of rho * T.
    limit = int(np.floor((rho * profile.t_full - profile.t_forward) * scale))
    if limit < 0:
        return np.zeros(count, bool)

    # taken[k, t]: most importance with k the input-most selected tensor; before[k, t] the k_c.
    taken = np.full((count, limit + 1), -np.inf)
    before = np.full((count, limit + 1), -1)
    for k in range(count):
        # Redundant subproblems: t does not suffice for the gradient to come to tensor k.
        start = int(way[k])
        if start > limit:
            break
        first = start + int(t_dw[k])
        if first > limit:
            continue
        taken[k, first:] = worth[k]
        for closest in range(k):
            step = int(t_dw[k] + way[k] - way[closest])
            if step > limit:
                continue
            value = taken[closest, : limit + 1 - step] + worth[k]
            better = value > taken[k, step:]
            taken[k, step:][better] = value[better]
            before[k, step:][better] = closest
    mask = np.zeros(count, bool)
    k = int(np.argmax(taken[:, limit]))
    t = limit
    while k >= 0 and np.isfinite(taken[k, t]):
        mask[k] = True
        closest = int(before[k, t])
        t -= int(t_dw[k] + way[k] - (way[closest] if closest >= 0 else 0))
        k = closest
    return mask[::-1]

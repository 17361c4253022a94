"""The chain, solved by one knapsack row: the recurrence of the method's Sec. 6, for all depths.

With d the deepest trained tensor the time of carrying the gradient is fixed, and what is left is a
knapsack over the tensors after d. One row, from the output to the input, serves every d.
"""

from __future__ import annotations

import numpy as np

from elastic_tf.selection.problem import Problem, chain_tail


def sweep(problem: Problem, ticks: int) -> np.ndarray:
    """Best choice on the chain with times rounded up to `ticks` steps of the budget.

    row[b] is the most importance that fits into b ticks over the tensors after d; it is asked once
    for each d, for budget - tail[d] - cost[d]. O(n * ticks), a vector operation per tensor.

    Args:
        problem: what to choose from.
        ticks: steps into which the budget is divided.

    Returns:
        (n,) bool, never over the budget; nothing True if nothing fits.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 6. The paper asks every shallower
    depth at every tensor, O(n^2 * ticks), and rounds down, which can exceed the budget.
    """
    count = len(problem.worth)
    tick = problem.budget / ticks
    if not count or tick <= 0.0:
        return np.zeros(count, bool)
    room = (problem.budget - chain_tail(problem)) / tick
    cost = problem.cost / tick
    steps = np.ceil(cost)
    row, fresh = np.zeros(ticks + 1), np.empty(ticks + 1)
    taken = np.empty((count, ticks + 1), bool)
    best, deepest, left = 0.0, -1, 0
    for k in range(count - 1, -1, -1):
        if room[k] < 0.0:
            break  # the deeper, the less room
        size = int(room[k]) + 1
        taken[k, :size] = False
        if cost[k] > room[k]:
            continue
        asked = int(room[k] - cost[k])
        value = row[asked] + problem.worth[k]
        if value > best:
            best, deepest, left = value, k, asked
        shift = int(steps[k])
        if shift >= size:
            continue
        with_k = np.add(row[: size - shift], problem.worth[k], out=fresh[: size - shift])
        without_k = row[shift:size]
        np.greater(with_k, without_k, out=taken[k, shift:size])
        np.maximum(with_k, without_k, out=without_k)
    chosen = np.zeros(count, bool)
    if deepest >= 0:
        chosen[deepest] = True
        for k in range(deepest + 1, count):
            if taken[k, left]:
                chosen[k] = True
                left -= int(steps[k])
    return chosen

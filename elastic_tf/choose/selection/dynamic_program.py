"""The recurrence of the method's paper: a chain, and times counted in ticks."""

from __future__ import annotations

import numpy as np

from elastic_tf.choose.selection.problem import Problem, Solution
from elastic_tf.choose.selection.solver import relax

TICKS = 10_000
_ROUNDING = 1e-9  # of a tick


def recurrence(problem: Problem, ticks: int = TICKS) -> Solution:
    """Best selection on the chain, with times rounded up to `ticks` steps of the budget.

    With d the input-most trained tensor the time of carrying the gradient to it is fixed, and what
    is left is a knapsack over the tensors after d. One row serves every d, from the output to the
    input: row[b] is the most worth that fits into b ticks over the tensors after d. An item that
    several tensors need is charged for all up to the last of them.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 6. The paper asks every shallower
    depth at every tensor, O(n^2 * ticks), and rounds down, which can exceed the budget.
    """
    count = len(problem.worth)
    chosen = np.zeros(count, bool)
    if not count or not problem.room:
        return Solution(chosen, float(problem.worth.sum()))
    cost = problem.own * ticks - _ROUNDING
    last = count - 1 - problem.member[:, ::-1].argmax(axis=1)
    tail = np.cumsum(np.bincount(last, problem.cost, count)[::-1])[::-1]
    room = (1.0 - tail) * ticks + _ROUNDING
    steps = np.ceil(np.maximum(cost, 0.0))
    row, taken = np.zeros(ticks + 1), np.zeros((count, ticks + 1), bool)
    best, deepest, left = 0.0, -1, 0
    for k in range(count - 1, -1, -1):
        if room[k] < 0.0:
            break  # the deeper, the less room
        size = int(room[k]) + 1
        if cost[k] > room[k]:
            continue
        asked = int(room[k] - cost[k])
        value = row[asked] + problem.worth[k]
        if value > best:
            best, deepest, left = value, k, asked
        shift = int(steps[k])
        with_k = row[: max(size - shift, 0)] + problem.worth[k]
        without_k = row[shift:size]
        taken[k, shift:size] = with_k > without_k
        row[shift:size] = np.maximum(with_k, without_k)
    if deepest >= 0:
        chosen[deepest] = True
        for k in range(deepest + 1, count):
            if taken[k, left]:
                chosen[k] = True
                left -= int(steps[k])
    every, rows = np.ones(count, bool), np.arange(len(problem.cost))
    return Solution(chosen, relax(problem, every, rows, problem.room, 1.0).bound)

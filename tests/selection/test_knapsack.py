"""The knapsack solver against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from elastic_tf.selection.knapsack import relax, solve


def case(seed: int) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Worths, costs, room, and the best value."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 11))
    cost = rng.integers(0, 4, count) * rng.choice([1.0, 0.37])
    worth = [rng.random(count), rng.integers(1, 3, count).astype(float), cost + 0.1][seed % 3]
    room = rng.random() * cost.sum()
    masks = np.array(list(itertools.product([0.0, 1.0], repeat=count)))
    return worth, cost, room, float((masks @ worth)[masks @ cost <= room].max())


@pytest.mark.parametrize("share", [-1.0, 0.5, 0.99])
def test_solution_is_the_best_one(share: float) -> None:
    for seed in range(150):
        worth, cost, room, best = case(seed)
        solved = solve(worth, cost, room, floor=share * best - 1e-9, states=4096)
        assert solved.chosen is not None
        assert cost[solved.chosen].sum() <= room
        assert worth[solved.chosen].sum() == pytest.approx(best)
        assert solved.bound == pytest.approx(best)


def test_no_solution_is_given_where_none_exceeds_the_floor() -> None:
    for seed in range(150):
        worth, cost, room, best = case(seed)
        solved = solve(worth, cost, room, floor=best * (1.0 + 1e-9), states=4096)
        assert solved.chosen is None
        assert solved.bound <= relax(worth, cost, room).bound * (1.0 + 1e-12)


@pytest.mark.parametrize("states", [1, 2, 3])
def test_bound_holds_when_the_list_is_cut(states: int) -> None:
    for seed in range(150):
        worth, cost, room, best = case(seed)
        solved = solve(worth, cost, room, floor=-1.0, states=states)
        assert solved.bound >= best * (1.0 - 1e-12)
        if solved.chosen is not None:
            assert cost[solved.chosen].sum() <= room


def test_relaxation_bounds_the_best() -> None:
    for seed in range(150):
        worth, cost, room, best = case(seed)
        relaxed = relax(worth, cost, room)
        assert relaxed.bound >= best * (1.0 - 1e-12)
        assert cost[relaxed.order[: relaxed.whole]].sum() <= room * (1.0 + 1e-12)

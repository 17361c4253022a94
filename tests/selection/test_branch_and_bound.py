"""The bounds against enumeration; the search itself is tested in test_selection.py."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from instances import network_table, random_graph, residual, times, towers

from elastic_tf.selection.bounds import borne, branch_bounds, depth_bounds, shared_out
from elastic_tf.selection.branch_and_bound import improve
from elastic_tf.selection.problem import Problem, fill, reduce, spent


def problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    layers = (residual, towers, random_graph)[seed % 3](int(rng.integers(4, 9)), rng)
    table = network_table(layers, rng, ("lognormal", "pareto", "ties", "zeros")[seed % 4])
    count = len(table.t_dw)
    return reduce(
        rng.random(count), table, np.zeros(count, bool), rng.uniform(0.4, 1.0) * table.t_full
    )


def best_by_depth(whole: Problem) -> np.ndarray:
    """(n,) the best choice with deepest tensor d; -inf where there is none."""
    count = len(whole.worth)
    best = np.full(count, -np.inf)
    for bits in itertools.product([False, True], repeat=count):
        chosen = np.array(bits)
        if chosen.any() and spent(whole, chosen) <= whole.budget:
            d = int(chosen.argmax())
            best[d] = max(best[d], whole.worth[chosen].sum())
    return best


@pytest.mark.parametrize("seed", range(24))
def test_bounds_hold_for_each_depth(seed: int) -> None:
    whole = problem(seed)
    best = best_by_depth(whole)
    bounds = depth_bounds(whole)
    assert (bounds >= best * (1.0 - 1e-12)).all()
    possible = np.flatnonzero(np.isfinite(bounds))
    if len(whole.branch) and len(possible):
        for price in (1e-4, whole.worth.sum() / whole.budget):
            tight = branch_bounds(whole, possible, price)
            assert (tight >= best[possible] * (1.0 - 1e-12)).all()


@pytest.mark.parametrize("seed", range(24))
def test_search_from_nothing_ends_at_the_best(seed: int) -> None:
    whole = problem(seed)
    best = max(0.0, best_by_depth(whole).max())
    result = improve(whole, np.zeros(len(whole.worth), bool))
    assert whole.worth[result.chosen].sum() == pytest.approx(best)
    assert result.upper_bound == pytest.approx(best)


@pytest.mark.parametrize("price", [0.0, 1e-3, 1.0, 1e3])
def test_shares_of_a_set_make_up_its_time(price: float) -> None:
    rng = np.random.default_rng(0)
    member = rng.random((6, 9)) < 0.4
    member[:, 0] = True
    sets = times(rng, "lognormal", 6)
    worth, cost = rng.random(9), rng.random(9)
    shares = shared_out(worth, cost, member, sets, price)
    assert (shares >= 0.0).all()
    assert (shares[~member] == 0.0).all()
    np.testing.assert_allclose(shares.sum(axis=1), sets)
    np.testing.assert_allclose(borne(worth, cost, member, sets, price), shares.sum(axis=0))


def test_filling_up_keeps_the_budget_and_leaves_no_tensor_that_fits() -> None:
    for seed in range(24):
        whole = problem(seed)
        chosen = fill(whole, np.zeros(len(whole.worth), bool))
        assert spent(whole, chosen) <= max(whole.budget, 0.0)
        for k in np.flatnonzero(~chosen):
            more = chosen | (np.arange(len(chosen)) == k)
            assert spent(whole, more) > whole.budget

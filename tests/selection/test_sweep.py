"""The sweep over the chain, at the resolution of its ticks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from instances import Table, chain_table, inception, network_table

from elastic_tf.selection.dynamic_program import sweep
from elastic_tf.selection.problem import Problem, reduce, spent


def problem(table: Table, importance: np.ndarray, limit: float) -> Problem:
    return reduce(importance, table, np.zeros(len(importance), bool), limit)


def test_sweep_is_best_on_a_chain_whose_times_are_whole_ticks() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(2, 10))
        table = chain_table(rng.integers(0, 5, count), rng.integers(0, 5, count), 4.0)
        importance = rng.random(count) + 0.01
        ticks = int(rng.integers(1, 30))
        whole = problem(table, importance, 4.0 + ticks)
        chosen = whole.tensors[sweep(whole, ticks)]
        masks = np.array(list(itertools.product([False, True], repeat=count)))
        fits = [table.step_time(mask) <= 4.0 + ticks + 1e-9 for mask in masks]
        assert importance[chosen].sum() == pytest.approx((masks[fits] @ importance).max())


@pytest.mark.parametrize("ticks", [1, 7, 1_000])
def test_sweep_keeps_the_budget_at_any_resolution(ticks: int) -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        table = network_table(inception(40, rng), rng)
        whole = problem(table, rng.random(len(table.t_dw)), rng.uniform(0.3, 1.0) * table.t_full)
        assert spent(whole, sweep(whole, ticks)) <= max(whole.budget, 0.0)


def test_nothing_is_chosen_where_nothing_fits() -> None:
    table = chain_table(np.ones(3), np.ones(3), 4.0)
    assert not sweep(problem(table, np.ones(3), 4.1), 1_000).any()
    assert not sweep(problem(table, -np.ones(3), 10.0), 1_000).any()

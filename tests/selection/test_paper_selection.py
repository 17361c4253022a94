"""The paper's recurrence against enumeration, where its rounding does nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from instances import chain_table, instance
from paper_selection import paper_selection

from elastic_tf.selection.selector import select_tensors


def test_recurrence_is_exact_on_a_chain_of_whole_times() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(2, 9))
        table = chain_table(rng.integers(0, 5, count), rng.integers(0, 5, count), 4.0)
        importance = rng.random(count) + 0.01
        allowed = 4.0 + int(rng.integers(1, 20))
        rho = min(1.0, allowed / table.t_full)
        found = paper_selection(importance, table, rho, int(table.t_full))
        masks = np.array(list(itertools.product([False, True], repeat=count)))
        # Its chain charges all t_dy from the deepest selected tensor on.
        times = [
            4.0 + table.t_dw[mask].sum() + (table.t_dy[mask.argmax() :].sum() if mask.any() else 0)
            for mask in masks
        ]
        best = (masks[np.array(times) <= rho * table.t_full + 1e-9] @ importance).max()
        assert importance[found.mask].sum() == pytest.approx(best)
        assert found.subproblems <= found.all_subproblems


def test_recurrence_reaches_no_more_than_the_selector_within_the_budget() -> None:
    for seed in range(10):
        importance, table, rho = instance("chain", 30, seed)
        found = paper_selection(importance, table, rho, 1_000)
        if table.step_time(found.mask) <= rho * table.t_full:
            bound = select_tensors(importance, table, rho).upper_bound
            assert importance[found.mask].sum() <= bound * (1.0 + 1e-9)


def test_recurrence_selects_nothing_where_the_forward_pass_takes_all() -> None:
    importance, table, _ = instance("chain", 10, 0)
    assert not paper_selection(importance, table, 1e-3, 1_000).mask.any()

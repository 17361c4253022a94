"""The reduced problem against the profile that it comes from."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from instances import chain_table, network_table, random_graph, residual

from elastic_tf.selection.problem import chain_tail, reduce, sets_of, spent


@pytest.mark.parametrize("seed", range(12))
def test_time_spent_is_that_of_the_profile(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = network_table((residual, random_graph)[seed % 2](8, rng), rng)
    count = len(table.t_dw)
    importance, required = rng.normal(0.5, 1.0, count), rng.random(count) < 0.2
    whole = reduce(importance, table, required, table.t_full)
    assert (importance[whole.tensors] > 0.0).all()
    assert not required[whole.tensors].any()
    for _ in range(20):
        chosen = rng.random(len(whole.tensors)) < 0.4
        mask = required.copy()
        mask[whole.tensors[chosen]] = True
        left = whole.budget - spent(whole, chosen)
        assert left == pytest.approx(table.t_full - table.step_time(mask), abs=1e-6)


def test_chain_has_no_branches() -> None:
    table = chain_table(np.ones(6), np.ones(6), 6.0)
    whole = reduce(np.ones(6), table, np.zeros(6, bool), table.t_full)
    assert not len(whole.branch)
    assert whole.cost.tolist() == [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]  # {0} is needed by 0 alone
    assert whole.tail.tolist() == [5.0, 5.0, 4.0, 3.0, 2.0, 1.0]


def test_chain_time_is_never_below_the_time_spent() -> None:
    rng = np.random.default_rng(0)
    table = network_table(random_graph(9, rng), rng)
    whole = reduce(np.ones(9), table, np.zeros(9, bool), table.t_full)
    tail = chain_tail(whole)
    for bits in itertools.product([False, True], repeat=9):
        chosen = np.array(bits)
        if chosen.any():
            chain = tail[chosen.argmax()] + whole.cost[chosen].sum()
            assert chain >= spent(whole, chosen) - 1e-9


def test_sets_are_sorted_once_for_a_profile() -> None:
    table = chain_table(np.ones(4), np.ones(4), 4.0)
    assert sets_of(table) is sets_of(table)
    sets = sets_of(chain_table(np.ones(4), 2.0 * np.ones(4), 4.0))
    assert sets.single.tolist() == [3.0, 1.0, 1.0, 1.0]  # {0..0} is {0}
    assert sets.prefix.tolist() == [0.0, 2.0, 2.0, 2.0]
    assert sets.member.shape == (0, 4)


@pytest.mark.parametrize("seed", range(6))
def test_time_over_the_sets_is_that_of_the_profile(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = network_table((residual, random_graph)[seed % 2](20, rng), rng)
    count = len(table.t_dw)
    sets = sets_of(table)
    for density in (0.0, 0.1, 0.5):
        mask = rng.random(count) < density
        assert sets.spent(mask) == pytest.approx(table.step_time(mask) - table.t_forward)
    alone = [table.step_time(np.arange(count) == k) - table.t_forward for k in range(count)]
    np.testing.assert_allclose(sets.alone(), alone)


def test_tensor_that_does_not_fit_alone_is_left_out() -> None:
    table = chain_table(np.array([1.0, 9.0, 1.0]), np.ones(3), 3.0)
    whole = reduce(np.ones(3), table, np.zeros(3, bool), 9.0)
    assert whole.tensors.tolist() == [0, 2]

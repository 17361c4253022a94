"""The paper's recurrence, ours and as published, at the resolution of its ticks."""

import itertools

import numpy as np
import pytest
from instances import instance
from paper_selection import paper_selection

from elastic_tf.choose.problem import Choices, reduce
from elastic_tf.choose.selection import select_tensors
from elastic_tf.choose.solvers import recurrence
from elastic_tf.timing.profile import TimingProfile


def test_recurrence_is_best_on_a_chain_whose_times_are_whole_ticks() -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        count, ticks = int(rng.integers(2, 9)), int(rng.integers(1, 30))
        t_dw, t_dy = rng.integers(0, 5, count), rng.integers(0, 5, count)
        table = TimingProfile.from_chain(t_dw=t_dw, t_dy=t_dy, t_forward=4.0)
        importance = rng.random(count) + 0.01
        members, times = table.conditions
        choices = Choices(np.arange(count), members, times[:, None])
        problem = reduce(choices, importance, np.array([float(ticks)]), np.zeros(count, bool))
        found = recurrence(problem, ticks)
        masks = np.array(list(itertools.product([False, True], repeat=count)))
        fits = [table.step_time(mask) <= 4.0 + ticks for mask in masks]
        best = (masks[fits] @ importance).max()
        assert importance[problem.index[found.chosen]].sum() == pytest.approx(best)
        assert found.bound * problem.scale >= best * (1.0 - 1e-12)
        rho = min(1.0, (4 + ticks) / table.t_full)
        published = paper_selection(importance, table, rho, int(table.t_full))
        assert importance[published].sum() <= best * (1.0 + 1e-12)


@pytest.mark.parametrize("kind", ["chain", "towers"])
def test_recurrence_keeps_the_budget_and_tells_its_gap(kind: str) -> None:
    for seed in range(20):
        importance, table, rho = instance(kind, 40, seed)
        paper = select_tensors(importance, table, rho, strategy="paper")
        exact = select_tensors(importance, table, rho)
        assert table.step_time(paper.mask) <= rho * table.t_full * (1.0 + 1e-9)
        assert paper.upper_bound >= importance[exact.mask & (importance > 0.0)].sum() * (1.0 - 1e-9)
        assert paper.gap >= 0.0
        published = paper_selection(importance, table, rho, 1_000)
        if table.step_time(published) <= rho * table.t_full:
            assert importance[published].sum() <= exact.upper_bound * (1.0 + 1e-9)

"""The solvers: of tensors by branch and bound, of modes and two resources by a program."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from instances import instance
from mixed_integer import best
from paper_selection import paper_selection

from elastic_tf.choose import solvers
from elastic_tf.choose.problem import Choices, Problem, reduce
from elastic_tf.choose.selection import select_tensors
from elastic_tf.choose.solvers import best_choices, in_order, recurrence, relax, solve
from elastic_tf.timing.profile import TimingProfile


class Case(NamedTuple):
    worth: np.ndarray
    choices: Choices
    room: np.ndarray

    def problem(self) -> Problem:
        return reduce(self.choices, self.worth, self.room, np.zeros(len(self.worth), bool))

    def fits(self, chosen: np.ndarray) -> bool:
        once = np.bincount(self.choices.tensor[chosen]).max(initial=0) <= 1
        return bool(once and (self.choices.spent(chosen) <= self.room * (1.0 + 1e-9)).all())


def case(seed: int, tensors: int, modes: int = 1, resources: int = 1) -> Case:
    """Own items, chains of each mode, and others."""
    rng = np.random.default_rng([seed, tensors])
    tensor, mode = np.repeat(np.arange(tensors), modes), np.tile(np.arange(modes), tensors)
    rows = list(np.eye(len(tensor), dtype=bool))
    rows += [(tensor <= k) & (mode >= m) for k in range(tensors) for m in range(modes)]
    rows += list(rng.random((tensors, len(tensor))) < 0.3)
    size = (len(rows), resources)
    cost = rng.integers(0, 3, size) * 1.0 if seed % 2 else rng.lognormal(0.0, 1.5, size)
    room = cost.sum(axis=0) * rng.uniform(0.05, 0.9, resources)
    worth = rng.normal(0.5, 1.0, len(tensor)) + 0.3 * mode
    return Case(worth, Choices(tensor, np.array(rows), cost), room)


def enumerated(whole: Case) -> float:
    """The best of all choices."""
    choices = map(np.array, itertools.product([False, True], repeat=len(whole.worth)))
    return max(float(whole.worth[chosen].sum()) for chosen in choices if whole.fits(chosen))


@pytest.mark.parametrize("gap", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(12))
def test_tensors_are_the_best_of_all(seed: int, gap: float) -> None:
    whole = case(seed, 9)
    problem = whole.problem()
    found = solve(problem, gap)
    chosen = np.isin(np.arange(len(whole.worth)), problem.index[found.chosen])
    reached, most, bound = whole.worth[chosen].sum(), enumerated(whole), found.bound * problem.scale
    assert whole.fits(chosen)
    assert most * (1.0 - gap - 1e-9) <= reached <= most * (1.0 + 1e-9)
    assert most * (1.0 - 1e-9) <= bound <= reached / (1.0 - gap) + 1e-9


MODES = [case(seed, 9 // (1 + seed % 3), 1 + seed % 3, 2 - seed // 3 % 2) for seed in range(12)]


@pytest.mark.parametrize("whole", MODES)
def test_modes_and_resources_are_the_best_of_all(whole: Case) -> None:
    most, none = enumerated(whole), np.zeros(len(whole.worth), bool)
    for gap in (0.0, 0.1):
        found = best_choices(whole.choices, whole.worth, whole.room, none, gap)
        reached = whole.worth[found.chosen].sum()
        assert whole.fits(found.chosen)
        assert most * (1.0 - gap) - 1e-5 <= reached <= most * (1.0 + 1e-9)
        assert most - 1e-5 <= found.bound


@pytest.mark.parametrize("seed", range(12))
def test_both_reach_the_mixed_integer_optimum_beside_required_ones(seed: int) -> None:
    whole = case(seed, 24)
    must = np.arange(24) == 23
    room = np.maximum(whole.room, whole.choices.spent(must))
    most = best(whole.worth + 1e3 * must, *whole.choices[:3], room, gap=1e-9) - 1e3
    problem = reduce(whole.choices, whole.worth, room, must)
    one, two = solve(problem), best_choices(whole.choices, whole.worth, room, must)
    chosen = must | np.isin(np.arange(24), problem.index[one.chosen])
    for mask, bound in (
        (chosen, one.bound * problem.scale + whole.worth[23]),
        (two.chosen, two.bound),
    ):
        assert mask[23] and whole._replace(room=room).fits(mask)
        assert whole.worth[mask].sum() >= most - 1e-3 * np.abs(whole.worth[mask]).sum()
        assert bound >= most - 1e-5 * abs(most)


def test_bound_holds_however_little_work_is_allowed() -> None:
    for seed in range(12):
        whole = case(seed, 16)
        problem, most = whole.problem(), best(whole.worth, *whole.choices[:3], whole.room, gap=1e-6)
        for work in (0, 1, 3):
            found = solve(problem, 0.0, work)
            assert found.bound * problem.scale >= most * (1.0 - 1e-5)
            assert problem.spent(found.chosen) <= problem.room


def test_bound_holds_where_a_knapsack_has_too_many_states(monkeypatch) -> None:
    monkeypatch.setattr(solvers, "_STATES", 1)
    for seed in range(12):
        whole = case(seed, 9)
        problem, most = whole.problem(), enumerated(whole)
        for work in (1, 1_000):
            found = solve(problem, 0.0, work)
            assert found.bound * problem.scale >= most * (1.0 - 1e-9)
        reached = problem.worth[found.chosen].sum() * problem.scale
        assert reached == pytest.approx(most)  # tried again with more


@pytest.mark.parametrize(("kind", "work"), [("chain", 12), ("residual", 8)])
def test_problems_of_networks_take_little_work(kind: str, work: int) -> None:
    for seed in range(10):
        importance, table, rho = instance(kind, 60, seed)
        members, times = table.conditions
        choices = Choices(np.arange(table.count), members, times[:, None])
        room = np.array([rho * table.t_full - table.t_forward])
        problem = reduce(choices, importance, room, np.zeros(table.count, bool))
        found = solve(problem, work=work)
        reached = problem.worth[found.chosen].sum()
        assert reached >= found.bound * (1.0 - 1.001e-3)


@pytest.mark.parametrize("seed", range(6))
def test_relaxation_holds(seed: int) -> None:
    whole = case(seed, 8)
    problem = whole.problem()
    every = np.ones(len(problem.worth), bool)
    for price in (1e-3, 1.0, 1e3):
        found = relax(problem, every, np.arange(len(problem.member)), problem.room, price)
        assert found.bound * problem.scale >= enumerated(whole) * (1.0 - 1e-9)


def test_nothing_fits_and_nothing_is_worth_anything() -> None:
    whole = case(0, 6)
    for empty in (whole._replace(worth=-np.ones(6)), whole._replace(room=np.zeros(1))):
        none = np.zeros(6, bool)
        for found in (solve(empty.problem()), best_choices(*empty[1:2], *empty[::2], none)):
            assert (found.chosen.sum(), found.bound) == (0, 0.0)


def test_choices_without_a_cost_are_made_where_nothing_is_left_of_the_budget() -> None:
    choices = Choices(np.arange(3), np.array([[True, False, True]]), np.array([[2.0]]))
    given = np.ones(3), np.array([2.0]), np.array([True, False, False])
    problem = reduce(choices, *given)
    assert problem.index[solve(problem).chosen].tolist() == [1, 2]
    for solved in (best_choices, in_order):
        assert solved(choices, *given).chosen.all()


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

"""The solver where there are several modes for a tensor, and two resources."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from instances import instance
from mixed_integer import best

from elastic_tf.selection import solver
from elastic_tf.selection.bounds import relax
from elastic_tf.selection.problem import Problem, fill, reduce
from elastic_tf.selection.solver import solve


class Case(NamedTuple):
    worth: np.ndarray
    tensor: np.ndarray
    member: np.ndarray
    cost: np.ndarray
    budget: np.ndarray

    def problem(self) -> Problem:
        return reduce(*self, np.zeros(len(self.worth), bool))

    def fits(self, chosen: np.ndarray) -> bool:
        once = np.bincount(self.tensor[chosen]).max(initial=0) <= 1
        return bool(once and (self.spent(chosen) <= self.budget * (1.0 + 1e-9)).all())

    def spent(self, chosen: np.ndarray) -> np.ndarray:
        return self.cost[(self.member & chosen).any(axis=1)].sum(axis=0)


class Refunds(NamedTuple):
    """A case in which choices make cheaper what others need."""

    case: Case
    refund: np.ndarray
    refunded: np.ndarray

    def __getattr__(self, name: str) -> np.ndarray:
        return getattr(self.case, name)

    def problem(self, required: np.ndarray | None = None) -> Problem:
        must = np.zeros(len(self.worth), bool) if required is None else required
        return reduce(*self.case, must, self.refund, self.refunded)

    def fits(self, chosen: np.ndarray) -> bool:
        met = np.append((self.member & chosen).any(axis=1), False)
        back = self.refund[chosen & met[self.refunded]].sum(axis=0)
        once = np.bincount(self.tensor[chosen]).max(initial=0) <= 1
        spent = self.case.spent(chosen) - back
        return bool(once and (spent <= self.budget * (1.0 + 1e-9)).all())


def case(seed: int, tensors: int) -> Case:
    """Up to three modes a tensor, up to two resources; own items, chains of each mode, others."""
    rng = np.random.default_rng([seed, tensors])
    modes, resources = 1 + seed % 3, 1 + seed // 3 % 2
    tensor = np.repeat(np.arange(tensors), modes)
    mode = np.tile(np.arange(modes), tensors)
    rows = list(np.eye(len(tensor), dtype=bool))
    rows += [(tensor <= k) & (mode >= m) for k in range(tensors) for m in range(modes)]
    rows += list(rng.random((tensors, len(tensor))) < 0.3)
    draw = (lambda size: rng.lognormal(0.0, 1.5, size), lambda size: rng.integers(0, 3, size))[
        seed % 2
    ]
    cost = np.asarray(draw((len(rows), resources)), np.float64)
    budget = cost.sum(axis=0) * rng.uniform(0.05, 0.9, resources)
    worth = rng.normal(0.5, 1.0, len(tensor)) + 0.3 * mode
    return Case(worth, tensor, np.array(rows), cost, budget)


def with_refunds(seed: int, tensors: int) -> Refunds:
    """Modes but the first of a tensor refund of the chain that ends before it."""
    rng = np.random.default_rng([seed, tensors, 1])
    whole = case(3 * seed + 1 + seed % 2, tensors)
    mode = np.arange(len(whole.tensor)) - np.searchsorted(whole.tensor, whole.tensor)
    modes = int(mode.max()) + 1
    gives = (mode > 0) & (whole.tensor > 0)
    refunded = np.where(gives, len(whole.tensor) + (whole.tensor - 1) * modes, -1)
    share = rng.uniform(0.3, 1.0, (len(mode), 1))
    refund = np.where(gives[:, None], whole.cost[refunded] * share, 0.0)
    return Refunds(whole._replace(budget=0.6 * whole.budget), refund, refunded)


def enumerated(whole: Case | Refunds) -> float:
    """The best of all choices."""
    choices = map(np.array, itertools.product([False, True], repeat=len(whole.worth)))
    return max(float(whole.worth[chosen].sum()) for chosen in choices if whole.fits(chosen))


@pytest.mark.parametrize("seed", range(12))
def test_solution_is_the_best_of_all(seed: int) -> None:
    whole = case(seed, 9 // (1 + seed % 3))
    problem = whole.problem()
    for gap in (0.0, 0.1):
        found = solve(problem, gap)
        chosen = np.isin(np.arange(len(whole.worth)), problem.index[found.chosen])
        assert whole.fits(chosen)
        reached, most = whole.worth[chosen].sum(), enumerated(whole)
        assert most * (1.0 - gap - 1e-9) <= reached <= most * (1.0 + 1e-9)
        assert most * (1.0 - 1e-9) <= found.bound * problem.scale
        assert found.bound * problem.scale * (1.0 - gap) <= reached * (1.0 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_solution_reaches_the_mixed_integer_optimum(seed: int) -> None:
    whole = case(seed, 24)
    problem = whole.problem()
    found = solve(problem)
    chosen = np.isin(np.arange(len(whole.worth)), problem.index[found.chosen])
    most = best(*whole, gap=1e-6)
    assert whole.fits(chosen)
    assert whole.worth[chosen].sum() >= most * (1.0 - 1.001e-3)
    assert found.bound * problem.scale >= most * (1.0 - 1e-5)
    assert whole.worth[chosen].sum() >= found.bound * problem.scale * (1.0 - 1.001e-3)


@pytest.mark.parametrize("seed", range(16))
def test_solution_is_the_best_of_all_with_refunds(seed: int) -> None:
    whole = with_refunds(seed, 5)
    problem = whole.problem()
    most = enumerated(whole)
    for gap in (0.0, 0.1):
        found = solve(problem, gap)
        chosen = np.isin(np.arange(len(whole.worth)), problem.index[found.chosen])
        assert whole.fits(chosen)
        reached = whole.worth[chosen].sum()
        assert most * (1.0 - gap - 1e-9) <= reached <= most * (1.0 + 1e-9)
        assert most * (1.0 - 1e-9) <= found.bound * problem.scale


def test_cases_have_refunds() -> None:
    assert sum(with_refunds(seed, 5).problem().has_refunds for seed in range(16)) >= 8


@pytest.mark.parametrize("seed", range(8))
def test_costs_are_those_that_are_left_beside_the_required_ones(seed: int) -> None:
    whole = with_refunds(seed, 5)
    first = whole.problem()
    must = np.isin(np.arange(len(whole.worth)), first.index[solve(first).chosen][1:3])
    problem, rng = whole.problem(must), np.random.default_rng(seed)
    for _ in range(40):
        chosen = problem.once(rng.permutation(len(problem.index)))[: rng.integers(1, 4)]
        some = np.isin(np.arange(len(problem.index)), chosen)
        every = must | np.isin(np.arange(len(whole.worth)), problem.index[some])
        assert problem.fits(some) == whole.fits(every)
        for k in np.flatnonzero(problem.best(some) == 0):
            more = some | (np.arange(len(some)) == k)
            added = problem.spent(more) - problem.spent(some)
            assert (problem.added(some)[k] >= added - 1e-12).all()


def test_bound_holds_however_little_work_is_allowed() -> None:
    for seed in range(12):
        whole = case(seed, 16)
        problem = whole.problem()
        most = best(*whole, gap=1e-6)
        for work in (0, 1, 3):
            found = solve(problem, 0.0, work)
            assert found.bound * problem.scale >= most * (1.0 - 1e-5)
            assert problem.fits(found.chosen)


def test_bound_holds_where_a_knapsack_has_too_many_states(monkeypatch) -> None:
    monkeypatch.setattr(solver, "_STATES", 1)
    for seed in range(12):
        whole = case(seed, 9 // (1 + seed % 3))
        problem, most = whole.problem(), enumerated(whole)
        for work in (1, 1_000):
            found = solve(problem, 0.0, work)
            assert found.bound * problem.scale >= most * (1.0 - 1e-9)
        reached = problem.worth[found.chosen].sum() * problem.scale
        assert reached == pytest.approx(most)  # tried again with more


@pytest.mark.parametrize("kind", ["chain", "residual"])
def test_most_problems_take_little_work(kind: str) -> None:
    certified = []
    for seed in range(10):
        importance, table, rho = instance(kind, 60, seed)
        members, times = table.conditions
        budget, none = np.array([rho * table.t_full - table.t_forward]), np.zeros(table.count, bool)
        problem = reduce(importance, np.arange(table.count), members, times[:, None], budget, none)
        found = solve(problem, work=20)
        reached = problem.worth[found.chosen].sum()
        certified.append(reached >= found.bound * (1.0 - 1.001e-3))
    assert np.mean(certified) >= 0.8


@pytest.mark.parametrize("seed", range(6))
def test_relaxation_holds(seed: int) -> None:
    whole = case(seed, 8 // (1 + seed % 3))
    problem = whole.problem()
    every = np.ones(len(problem.worth), bool)
    for price in (1e-3, 1.0, 1e3):
        found = relax(
            problem, every, np.arange(len(problem.member)), problem.room, price, problem.own
        )
        assert found.bound * problem.scale >= enumerated(whole) * (1.0 - 1e-9)


def test_filling_up_leaves_nothing_that_fits() -> None:
    for seed in range(12):
        problem = case(seed, 12).problem()
        chosen = fill(problem, np.zeros(len(problem.worth), bool))
        assert problem.fits(chosen)
        assert (np.bincount(problem.tensor[chosen]) <= 1).all()
        for k in np.flatnonzero(problem.best(chosen) == 0):
            assert not problem.fits(chosen | (np.arange(len(chosen)) == k))


def test_nothing_fits_and_nothing_is_worth_anything() -> None:
    whole = case(0, 6)
    for empty in (whole._replace(worth=-np.ones(6)), whole._replace(budget=np.zeros(1))):
        found = solve(empty.problem())
        assert (found.chosen.sum(), found.bound) == (0, 0.0)


def test_choices_without_a_cost_are_made_where_nothing_is_left_of_the_budget() -> None:
    member, cost = np.array([[True, False, True]]), np.array([[2.0]])
    problem = reduce(
        np.ones(3), np.arange(3), member, cost, np.array([2.0]), np.array([True, False, False])
    )
    assert problem.index[solve(problem).chosen].tolist() == [1, 2]

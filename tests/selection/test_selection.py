"""The selector against the mixed-integer optimum, enumeration, and its own promises."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import NETWORKS, Table, instance
from mixed_integer import optimum

from elastic_tf.selection.selector import Selection, select_tensors, smallest_feasible_rho

# A selection may use this share of its budget more than a reference that counts in floats too.
ROUNDING = 1e-9


def enumerated(importance: np.ndarray, table: Table, rho: float) -> float:
    """The best of all masks within the budget."""
    masks = np.array(list(itertools.product([False, True], repeat=len(importance))))
    spent = np.full(len(masks), table.t_forward)
    for group in table.items:
        spent += group.time * masks[:, list(group.tensors)].any(axis=1)
    fits = spent <= rho * table.t_full * (1.0 + ROUNDING)
    return float((masks[fits] @ importance).max())


def check(selection: Selection, importance: np.ndarray, table: Table, rho: float) -> None:
    """What holds for every selection."""
    assert selection.mask.any()
    assert table.step_time(selection.mask) <= rho * table.t_full * (1.0 + ROUNDING)
    assert selection.time <= selection.budget == rho * table.t_full
    assert (importance[selection.mask] > 0.0).all()
    assert selection.importance == pytest.approx(importance[selection.mask].sum(), rel=1e-12)
    assert selection.importance <= selection.upper_bound
    assert selection.time == pytest.approx(table.step_time(selection.mask), rel=1e-9)


@pytest.mark.parametrize("kind", ["chain", *NETWORKS])
def test_selection_equals_enumeration(kind: str) -> None:
    cases = [instance(kind, 3 + seed % 8, seed) for seed in range(60)]
    cases = [case for case in cases if len(case[0]) <= 12]  # networks can come out larger
    assert len(cases) >= 40
    for importance, table, rho in cases:
        best = enumerated(importance, table, rho)
        selection = select_tensors(importance, table, rho)
        check(selection, importance, table, rho)
        assert selection.importance == pytest.approx(best, rel=1e-9)
        assert selection.gap < 1e-9


@pytest.mark.parametrize("kind", ["chain", *NETWORKS])
def test_selection_reaches_mixed_integer_optimum(kind: str) -> None:
    for seed in range(40):
        importance, table, rho = instance(kind, (13, 21, 34, 55)[seed % 4], seed)
        best = optimum(importance, table, rho)
        selection = select_tensors(importance, table, rho)
        check(selection, importance, table, rho)
        assert selection.importance >= 0.999 * best, seed
        assert selection.upper_bound >= best * (1.0 - 1e-6), seed
        assert selection.gap < (1e-2 if kind == "towers" else 2e-3), seed


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 5, 8, 13, 21, 34, 55, 89, 144, 214])
@pytest.mark.parametrize(("kind", "share"), [("chain", 0.999), ("residual", 0.99)])
def test_selection_keeps_what_is_promised(kind: str, share: float, count: int) -> None:
    for seed in range(count, count + 15):
        importance, table, rho = instance(kind, count, seed)
        best = optimum(importance, table, rho, seconds=4.0, gap=1e-5)
        selection = select_tensors(importance, table, rho)
        check(selection, importance, table, rho)
        assert selection.importance >= share * best, seed
        assert selection.upper_bound >= best * (1.0 - 1e-9), seed
        assert selection.gap < 1e-2, seed


def test_hard_chain_is_solved_within_the_work_allowed() -> None:
    # Worths that follow the costs, both heavy-tailed: many ways to fill the budget, none exactly.
    importance, table, rho = instance("chain", 214, 9)
    selection = select_tensors(importance, table, rho)
    assert selection.importance == pytest.approx(14308.8, rel=1e-3)  # experiments/mixed_integer.py
    assert selection.gap < 1e-2


@pytest.mark.parametrize("kind", ["chain", "residual", "towers"])
def test_same_problem_has_the_same_answer(kind: str) -> None:
    importance, table, rho = instance(kind, 214, 4)
    one, two = (select_tensors(importance, table, rho) for _ in range(2))
    assert (one.mask == two.mask).all()
    assert one.upper_bound == two.upper_bound


@pytest.mark.parametrize("ticks", [1, 10, 1_000, 100_000])
def test_selection_is_best_at_any_resolution(ticks: int) -> None:
    importance, table, rho = instance("residual", 40, 0)
    best = optimum(importance, table, rho)
    assert select_tensors(importance, table, rho, ticks=ticks).importance >= 0.999 * best


def test_branches_are_not_charged_for_each_other() -> None:
    # Two towers of three tensors, then the head. The chain charges the second tower's gradient
    # (9 microseconds) when only the first tower's last tensor is trained.
    sets = [((k,), 1.0) for k in range(7)]
    sets += [((0, 1, 2), 1.0), ((3, 4, 5), 9.0), ((0, 1, 2, 3, 4, 5), 1.0)]
    table = profile(sets, count=7, t_forward=10.0)
    importance = np.array([0.0, 0.0, 5.0, 1.0, 1.0, 1.0, 0.1])
    selection = select_tensors(importance, table, 14.5 / table.t_full)
    assert np.flatnonzero(selection.mask).tolist() == [2, 6]
    assert selection.time == pytest.approx(14.0)


tables = st.builds(
    lambda kind, count, seed: instance(kind, count, seed),
    st.sampled_from(["chain", *NETWORKS]),
    st.integers(3, 14),
    st.integers(0, 10_000),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tables, st.floats(0.01, 1.0))
def test_selection_is_within_budget_or_refused(case: tuple, rho: float) -> None:
    importance, table, _ = case
    if rho < smallest_feasible_rho(table, importance) * (1.0 - ROUNDING):
        with pytest.raises(ValueError, match=f"rho={rho}"):
            select_tensors(importance, table, rho)
    else:
        check(select_tensors(importance, table, rho), importance, table, rho)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tables, st.floats(0.0, 1.0))
def test_more_budget_never_lowers_the_importance(case: tuple, more: float) -> None:
    importance, table, rho = case
    less = select_tensors(importance, table, rho).importance
    wider = select_tensors(importance, table, rho + more * (1.0 - rho)).importance
    assert wider >= less * (1.0 - ROUNDING)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tables, st.floats(1e-3, 1e3), st.integers(-10, 10))
def test_scaling_all_times_changes_nothing(case: tuple, factor: float, power: int) -> None:
    importance, table, rho = case
    selection = select_tensors(importance, table, rho)
    doubled = select_tensors(importance, scaled(table, 2.0**power), rho)
    assert (doubled.mask == selection.mask).all()
    other = select_tensors(importance, scaled(table, factor), rho)
    assert other.importance == pytest.approx(selection.importance, rel=1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(tables, st.integers(0, 10_000))
def test_required_tensors_are_in_and_the_rest_is_best(case: tuple, seed: int) -> None:
    importance, table, _ = case
    rng = np.random.default_rng(seed)
    required = rng.random(len(importance)) < 0.2
    required[-1] = True
    smallest = smallest_feasible_rho(table, importance, required=required)
    rho = min(1.0, smallest * (1.0 + ROUNDING) + rng.random() * (1.0 - smallest))
    selection = select_tensors(importance, table, rho, required=required)
    assert selection.mask[required].all()
    assert table.step_time(selection.mask) <= rho * table.t_full * (1.0 + ROUNDING)
    if len(importance) <= 12:
        worth = importance + np.where(required, 1e6, 0.0)
        best = enumerated(worth, table, rho) - 1e6 * required.sum()
        assert selection.importance == pytest.approx(best, rel=1e-6, abs=1e-6)
        assert selection.upper_bound >= best - 1e-6


def test_full_budget_admits_every_tensor_of_positive_importance() -> None:
    importance, table, _ = instance("residual", 60, 1)
    selection = select_tensors(importance, table, 1.0)
    assert (selection.mask == (importance > 0.0)).all()
    assert selection.gap == 0.0


def test_ties_in_importance_are_no_obstacle() -> None:
    table = profile([((k,), 1.0) for k in range(4)], count=4, t_forward=4.0)
    selection = select_tensors(np.ones(4), table, 0.75)
    assert selection.mask.sum() == 2
    assert selection.upper_bound == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("importance", "chosen"), [([0.0, 0.0, 0.0], 2), ([-3.0, -1.0, -2.0], 1), ([-1, -1, -1], 2)]
)
def test_least_harmful_tensor_is_trained_when_no_importance_is_positive(
    importance: list[float], chosen: int
) -> None:
    table = profile([((k,), 1.0) for k in range(3)], count=3, t_forward=1.0)
    selection = select_tensors(np.array(importance), table, 0.5)
    assert np.flatnonzero(selection.mask).tolist() == [chosen]
    assert selection.gap == 0.0


def test_required_tensors_alone_are_trained_when_no_importance_is_positive() -> None:
    table = profile([((k,), 1.0) for k in range(3)], count=3, t_forward=1.0)
    head = np.array([False, True, True])
    selection = select_tensors(np.array([-1.0, -1.0, -1.0]), table, 0.75, required=head)
    assert (selection.mask == head).all()
    assert selection.importance == -2.0


def test_arguments_are_not_changed() -> None:
    importance, table, rho = instance("residual", 30, 3)
    required = np.zeros(len(importance), bool)
    required[-1] = True
    before = importance.copy(), required.copy(), table.t_dw.copy()
    selection = select_tensors(importance, table, min(1.0, rho + 0.2), required=required)
    selection.mask[:] = False
    assert all((a == b).all() for a, b in zip(before, (importance, required, table.t_dw)))


def test_budget_too_small_names_a_rho_that_works() -> None:
    table = profile([((0,), 2.0), ((1,), 1.0), ((0, 1), 1.0)], count=2, t_forward=5.0)
    importance = np.array([1.0, 1.0])
    with pytest.raises(ValueError, match=r"rho=0.7\b.*smallest feasible rho is 0.7778"):
        select_tensors(importance, table, 0.7)
    assert select_tensors(importance, table, 0.7778).mask.tolist() == [False, True]


def test_budget_too_small_counts_tensors_of_positive_importance_only() -> None:
    table = profile([((0,), 2.0), ((1,), 1.0)], count=2, t_forward=5.0)
    with pytest.raises(ValueError, match="positive importance.*smallest feasible rho is 0.8750"):
        select_tensors(np.array([1.0, -1.0]), table, 0.8)


def test_budget_too_small_for_the_required_tensors_says_so() -> None:
    table = profile([((0,), 2.0), ((1,), 1.0)], count=2, t_forward=5.0)
    with pytest.raises(ValueError, match="required tensors.*smallest feasible rho is 1.0000"):
        select_tensors(np.ones(2), table, 0.9, required=np.array([True, True]))


def test_smallest_feasible_rho_is_that_of_the_cheapest_tensor() -> None:
    table = profile([((0,), 2.0), ((1,), 1.0), ((0, 1), 1.0)], count=2, t_forward=5.0)
    assert smallest_feasible_rho(table) == pytest.approx(7.0 / 9.0)
    assert smallest_feasible_rho(table, np.array([1.0, 0.0])) == pytest.approx(8.0 / 9.0)
    both = np.array([True, True])
    assert smallest_feasible_rho(table, required=both) == pytest.approx(1.0)


@pytest.mark.parametrize("rho", [0.0, -0.5, 1.7, float("nan"), float("inf"), "half", True, None])
def test_rho_outside_its_range_is_refused(rho: object) -> None:
    table = profile([((0,), 1.0)], count=1, t_forward=1.0)
    with pytest.raises(ValueError, match=f"rho={rho!r}"):
        select_tensors(np.ones(1), table, rho)


@pytest.mark.parametrize("ticks", [0, -1, 0.5, True])
def test_ticks_below_one_are_refused(ticks: object) -> None:
    table = profile([((0,), 1.0)], count=1, t_forward=1.0)
    with pytest.raises(ValueError, match=f"`ticks` .* Received: {ticks}"):
        select_tensors(np.ones(1), table, 1.0, ticks=ticks)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_importance_that_is_not_finite_is_refused(value: float) -> None:
    table = profile([((0,), 1.0), ((1,), 1.0)], count=2, t_forward=1.0)
    with pytest.raises(ValueError, match=rf"Received: {value} at importance\[1\]"):
        select_tensors(np.array([1.0, value]), table, 1.0)


def test_importance_of_another_length_is_refused() -> None:
    table = profile([((0,), 1.0), ((1,), 1.0)], count=2, t_forward=1.0)
    with pytest.raises(ValueError, match=r"shape \(2,\).*Received: .* of shape \(3,\)"):
        select_tensors(np.ones(3), table, 1.0)


@pytest.mark.parametrize("required", [np.array([1, 0]), np.array([True])])
def test_required_that_is_no_mask_is_refused(required: np.ndarray) -> None:
    table = profile([((0,), 1.0), ((1,), 1.0)], count=2, t_forward=1.0)
    with pytest.raises(ValueError, match=rf"Received: {required.dtype}"):
        select_tensors(np.ones(2), table, 1.0, required=required)


def profile(sets: list[tuple[tuple[int, ...], float]], count: int, t_forward: float) -> Table:
    return Table.from_sets(sets, count, t_forward)


def scaled(table: Table, factor: float) -> Table:
    sets = [(s.tensors, s.time * factor) for s in table.items]
    return Table.from_sets(sets, len(table.t_dw), table.t_forward * factor)

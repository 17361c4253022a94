"""What the judgement of importance rests on: masks of equal cost, ranks, states put back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from bench_importance import rank_correlation
from importance_drift import kept, similarity
from instances import instance
from mask_trials import RHO, Case, Samples, compiled, decreases, masks_of_equal_cost, states
from networks import CLASSES, images, network
from scipy.stats import spearmanr


def case() -> Case:
    x, y = images()
    return Case(
        name="tiny",
        build=network,
        train=Samples(x[:16], y[:16]),
        held_out=Samples(x[16:], y[16:]),
        batch_size=8,
        optimizer="adam",
        learning_rate=1e-2,
        warm_head=1,
        seeds=(0,),
        masks=2,
    )


def test_masks_hold_what_is_required_and_cost_the_same() -> None:
    _, table, _ = instance("residual", 80, 0)
    table = dataclasses.replace(table, t_forward=0.3 * table.t_full)
    table = dataclasses.replace(table, t_full=0.3 * table.t_full + sum(s.time for s in table.items))
    required = np.arange(len(table.t_dw)) >= len(table.t_dw) - 2
    masks = masks_of_equal_cost(table, required, 12, np.random.default_rng(0))
    assert len({mask.tobytes() for mask in masks}) == 12
    for mask in masks:
        assert mask[required].all()
        assert 0.98 * RHO <= table.step_time(mask) / table.t_full <= RHO


def test_trials_start_from_the_same_state() -> None:
    model = compiled(case())
    moments = states(case(), model, 8)
    assert [state.name for state in moments] == ["seed 0, start", "seed 0, later"]
    head = np.arange(len(model.tensors)) >= len(model.tensors) - 2
    masks = [head, ~head, head]
    won = decreases(case(), model, moments, masks)
    assert won["train"].shape == (2, 3)
    for part in won.values():
        np.testing.assert_allclose(part[:, 0], part[:, 2], rtol=1e-5)
    assert (won["train"][:, 0] != won["train"][:, 1]).all()
    assert moments[0].probe.y.shape == (8,)
    assert moments[0].epoch.y.max() < CLASSES


def test_rank_correlation_is_spearmans() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.integers(0, 6, 30), rng.random(30)
    assert rank_correlation(one, two) == pytest.approx(spearmanr(one, two).statistic)
    assert rank_correlation(two, two) == pytest.approx(1.0)
    assert rank_correlation(np.ones(5), two[:5]) == 0.0


def test_rank_correlation_at_equal_depth_leaves_nothing_of_the_depth() -> None:
    depth = np.arange(12.0)
    assert rank_correlation(depth, depth**3) == pytest.approx(1.0)
    assert rank_correlation(depth, depth**3, given=-depth) == 0.0
    other = np.random.default_rng(0).permutation(12)
    assert rank_correlation(other, 2.0 * other, given=depth) == pytest.approx(1.0)


def test_drift_of_importance_that_does_not_change_is_none() -> None:
    worths = [np.array([1.0, 2.0, 3.0])] * 4
    masks = [np.array([False, True, True])] * 4
    assert similarity(worths, 2) == pytest.approx(1.0)
    assert kept(worths, masks, masks, 2) == 1.0
    others = [np.array([True, False, False])] * 4
    assert kept(worths, others, masks, 1) == pytest.approx(0.2)

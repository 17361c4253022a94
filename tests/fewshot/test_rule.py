"""The paper's rule against its words."""

import numpy as np
import pytest

from elastic_tf.methods.kernels import Budgets, KernelCosts, paper_rule
from elastic_tf.plan import NAMES, Plan

KERNELS = 4
MODES = {"exact": 8, "channels:1/2": 4, "channels:1/4": 2}


def network(seed: int) -> tuple[dict[int, np.ndarray], KernelCosts]:
    """Kernels and biases in turn, and the worth of the kernels' channels."""
    rng = np.random.default_rng(seed)
    is_kernel = np.arange(2 * KERNELS) % 2 == 0
    drawn = [rng.integers(50, 2000, 2 * KERNELS) for _ in range(4)]
    sizes, macs, inputs, kept = (np.where(is_kernel, part, 0) for part in drawn)
    indices = np.flatnonzero(is_kernel).tolist()
    costs = KernelCosts(sizes, 50 * macs, inputs, kept, 3000, dict.fromkeys(indices, MODES))
    return {k: rng.lognormal(size=8) for k in indices}, costs


def assert_best_channels(plan: Plan, worth: dict[int, np.ndarray]) -> None:
    for k, channels in plan.channels.items():
        assert NAMES[int(plan.modes[k])] in MODES
        assert worth[k][list(channels)].min() >= np.delete(worth[k], list(channels)).max()


@pytest.mark.parametrize("seed", range(8))
def test_the_paper_s_rule_takes_the_first_of_the_rank_within_both_budgets(seed: int) -> None:
    worth, costs = network(seed)
    rank = sorted(worth, key=lambda k: -worth[k].sum() / (costs.sizes[k] * costs.macs[k]))
    before = 0
    for part in np.linspace(0.3, 1.0, 8):
        budgets = Budgets.of(costs, round(30_000 * part) + costs.peak, 1.0)
        plan = paper_rule(worth, costs, budgets)
        shares = costs.shares(plan)
        assert costs.memory(shares) <= budgets.memory
        assert costs.backward_macs(shares) <= budgets.macs
        alone = [k for k in rank if costs.memory(np.eye(8)[k] / 4) <= budgets.memory]
        chosen = [k for k in alone if shares[k]]
        assert chosen == alone[: len(chosen)] and len(chosen) >= before
        before = len(chosen)
        assert_best_channels(plan, worth)
    assert before > 1


def test_without_budgets_everything_is_trained() -> None:
    worth, costs = network(0)
    plan = paper_rule(worth, costs, Budgets(np.inf, np.inf))
    assert np.flatnonzero(plan.mask).tolist() == list(worth)
    assert not plan.channels


def test_budgets_that_nothing_fits_into_are_refused() -> None:
    worth, costs = network(0)
    with pytest.raises(ValueError, match="A kernel must fit into both budgets. Received: 3000 b"):
        paper_rule(worth, costs, Budgets.of(costs, 3000, 1.0))

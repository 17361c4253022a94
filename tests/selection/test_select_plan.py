"""Modes chosen together with what is trained at all, against enumeration."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from elastic_tf import Plan
from elastic_tf.choose.selection.selector import select_plan, select_tensors
from elastic_tf.plan import EXACT, FROZEN, code_of
from elastic_tf.timing.cost_items import CostItem, ModeCost
from elastic_tf.timing.profile import TimingProfile

MODES = ("filtered:2", "channels:1/2")
CHANNELS = np.array([1.0, 4.0, 3.0, 0.0])


def chain(seed: int, count: int = 6) -> TimingProfile:
    """A chain of kernels, of which all but the first can be filtered, and every second cut."""
    rng = np.random.default_rng(seed)
    items = [CostItem.of([k], rng.lognormal(), layer=f"{k}") for k in range(count)]
    modes = []
    for k in range(2, count):
        shared = CostItem.of(range(k), rng.lognormal(), layer=f"{k}")
        items.append(shared)
        spared = shared.time * rng.uniform(0.3, 0.9)
        own = items[k].time * rng.uniform(0.1, 1.2)
        modes.append(ModeCost(k, MODES[0], own, spared, shared.tensors))
        if k % 2:
            modes.append(ModeCost(k, MODES[1], 0.6 * items[k].time))
    return TimingProfile(t_forward=1.0, items=tuple(items), count=count, modes=tuple(modes))


def worth(seed: int, profile: TimingProfile) -> np.ndarray:
    rng = np.random.default_rng([seed, 1])
    return rng.lognormal(0.0, 1.0, (profile.count, 1)) * [1.0, 0.6, 0.5] + 0.01


def plans(profile: TimingProfile) -> list[tuple[Plan, list[int]]]:
    """Every plan of the measured modes, and the column of each trained tensor."""
    columns = [
        [-1, 0, *(c for c, name in enumerate(MODES, 1) if (k, name) in profile.mode_costs)]
        for k in range(profile.count)
    ]
    codes = {-1: FROZEN, 0: EXACT, 1: code_of(MODES[0]), 2: code_of(MODES[1])}
    made = []
    for found in itertools.product(*columns):
        some = {k: [0, 1] for k, column in enumerate(found) if column == 2}
        made.append((Plan(np.array([codes[c] for c in found]), some), found))
    return made


@pytest.mark.parametrize("seed", range(6))
def test_plan_is_the_best_of_all(seed: int) -> None:
    profile = chain(seed)
    worths, rho = worth(seed, profile), 0.3 + 0.1 * seed
    fitting = [
        sum(worths[k, c] for k, c in enumerate(columns) if c >= 0)
        for plan, columns in plans(profile)
        if profile.step_time(plan) <= rho * profile.t_full
    ]
    channels = dict.fromkeys(range(profile.count), CHANNELS)
    found = select_plan(worths, profile, rho, modes=MODES, channels=channels)
    assert profile.step_time(found.plan) <= rho * profile.t_full * (1.0 + 1e-9)
    assert max(fitting) * (1.0 - 1e-3) <= found.importance <= max(fitting) * (1.0 + 1e-9)
    assert all(chosen == (1, 2) for chosen in found.plan.channels.values())


def test_modes_leave_room_for_more() -> None:
    profile = chain(0)
    worths = worth(0, profile)
    exact = select_tensors(worths[:, 0], profile, 0.5)
    found = select_plan(worths[:, :2], profile, 0.5, modes=MODES[:1])
    assert found.importance > exact.importance
    assert (found.plan.modes == code_of(MODES[0])).any()


def test_a_mode_that_is_slower_than_exact_is_never_chosen() -> None:
    items = tuple(CostItem.of([k], 1.0, layer=f"{k}") for k in range(4))
    slower = tuple(ModeCost(k, MODES[0], 1.5) for k in range(4))
    profile = TimingProfile(t_forward=1.0, items=items, count=4, modes=slower)
    found = select_plan(np.tile([1.0, 2.0], (4, 1)), profile, 1.0)
    assert found.plan == Plan.full(4)


def test_required_tensors_are_exact() -> None:
    profile = chain(1)
    must = np.arange(profile.count) == profile.count - 1
    worths = worth(1, profile) * [0.0, 1.0, 0.0]
    found = select_plan(worths[:, :2], profile, 0.6, modes=MODES[:1], required=must)
    assert found.plan.modes[-1] == EXACT


def test_what_does_not_fit_the_profile_is_refused() -> None:
    profile = chain(2)
    with pytest.raises(ValueError, match=r"`worth` must .*\(6, 2\).*Received"):
        select_plan(np.ones((6, 3)), profile, 0.5, modes=MODES[:1])
    with pytest.raises(ValueError, match=r"`modes` must .*Received: \['filtered:4'\]"):
        select_plan(np.ones((6, 2)), profile, 0.5, modes=["filtered:4"])
    no_limit: Any = "64 MiB"  # as `ElasticCallback` takes it
    with pytest.raises(ValueError, match=r"`memory` must be .*Received: '64 MiB'"):
        select_plan(np.ones((6, 1)), profile, 0.5, modes=(), memory=no_limit)
    with pytest.raises(ValueError, match="`channels` must have .*importance.of_modes"):
        select_plan(np.ones((6, 2)) * [0.1, 1.0], profile, 0.9, modes=MODES[1:])

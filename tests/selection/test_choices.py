"""What a plan costs: by the choices, by the profile, and by its items one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from elastic_tf.choose.selection.choices import offered
from elastic_tf.plan import EXACT, FROZEN, NAMES, Plan, code_of
from elastic_tf.timing.cost_items import CostItem, ModeCost
from elastic_tf.timing.profile import TimingProfile

MODES = ("filtered:2", "filtered:4")


def drawn(rng: np.random.Generator) -> TimingProfile:
    """Items of any tensors, some of one tensor alone, and modes of some kernels."""
    count = int(rng.integers(1, 7))

    def items(number: int, kinds: Sequence[str]) -> list[CostItem]:
        found = []
        for _ in range(number):
            tensors = np.flatnonzero(rng.random(count) < 0.4)
            tensors = tensors if len(tensors) else rng.integers(count, size=1)
            kind = "dw" if len(tensors) == 1 else "dy"
            found.append(CostItem.of(tensors, rng.random(), kind=str(rng.choice([kind, *kinds]))))
        return found

    own = [CostItem.of([k], rng.random()) for k in range(count)]
    made = (*own, *items(6, ["forward"]))
    prefix = (CostItem.of([0], 0.7, kind="forward"), *items(4, []))
    shared = {item.tensors: item.time for item in made if len(item.tensors) > 1}
    modes = []
    for k in range(count):
        for name in MODES:
            if rng.random() < 0.6:
                sets = [one for one in shared if k not in one]
                whose = sets[rng.integers(len(sets))] if sets and rng.random() < 0.7 else ()
                spared = 0.1 * rng.random() * shared.get(whose, 0.0)
                modes.append(ModeCost(k, name, 0.2 * rng.random(), spared, whose))
    return TimingProfile(5.0, made, count, prefix=prefix, modes=tuple(modes))


def counted(profile: TimingProfile, plan: Plan, fill: float | None, held: np.ndarray) -> float:
    """Microseconds of a step under a plan, item by item; no cache where `fill` is None."""
    modes = {k: NAMES[int(code)] for k, code in enumerate(plan.modes) if code != FROZEN}
    measured = {(cost.tensor, cost.mode): cost for cost in profile.modes}
    time = profile.t_forward
    for item in profile.items:
        if len(item.tensors) == 1:
            (k,) = item.tensors
            time += item.time if k in modes and (k, modes[k]) not in measured else 0.0
        elif set(item.tensors) & set(modes):
            time += item.time
    for k, name in modes.items():
        cost = measured.get((k, name))
        if cost is not None:
            time += cost.time - (cost.spared if set(cost.shared) & set(modes) else 0.0)
    for item in profile.prefix if fill is not None else ():
        if not set(item.tensors) & set(modes):
            time -= item.time * (1.0 - fill)
        # what is held is filled again where one of the held is trained
        is_held = held[list(item.tensors)].all()
        if is_held and not set(np.flatnonzero(held)) & set(modes):
            time -= item.time * fill
    return time


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_all_say_the_same_of_a_plan(seed: int, is_cached: bool) -> None:
    rng = np.random.default_rng(seed)
    whole = drawn(rng)
    held = rng.random(whole.count) < 0.5
    fill = float(rng.choice([0.0, rng.random(), 1.0])) if is_cached else None
    profile = whole if fill is None else whole.with_cached_prefix(fill, held)
    choices, mode = offered(profile, MODES)
    codes = np.array([EXACT, *map(code_of, MODES)])
    for _ in range(20):
        chosen = np.zeros(len(choices.tensor), bool)
        for k in np.flatnonzero(rng.random(whole.count) < 0.6):
            chosen[rng.choice(np.flatnonzero(choices.tensor == k))] = True
        plan = np.full(whole.count, FROZEN)
        plan[choices.tensor[chosen]] = codes[mode[chosen]]
        expected = counted(whole, Plan(plan), fill, held)
        assert profile.step_time(Plan(plan)) == pytest.approx(expected, abs=1e-9)
        assert profile.t_forward + choices.spent(chosen)[0] == pytest.approx(expected, abs=1e-9)

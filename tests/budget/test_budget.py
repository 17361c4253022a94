"""The budget: numbers, schedules, and what rubbish gets."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from instances import chain_table

from elastic_tf.budget.ratio import (
    RatioControl,
    backward_budget,
    doubt,
    rho_at,
    rho_for_deadline,
    step_budget,
)
from elastic_tf.timing.profile import CostItem, TimingProfile


def test_number_holds_in_every_epoch() -> None:
    assert rho_at(0.5, 0) == rho_at(np.float32(0.5), 7) == 0.5
    assert rho_at(1, 0) == 1.0


def test_schedule_is_asked_for_each_epoch() -> None:
    assert [rho_at(lambda epoch: 0.9 - 0.1 * epoch, epoch) for epoch in (0, 3)] == [0.9, 0.6]


@pytest.mark.parametrize("value", [0.0, 1.7, -1.0, float("nan"), None, "half", True, 0.5j])
def test_schedule_that_returns_rubbish_is_named_with_epoch_and_value(value: object) -> None:
    with pytest.raises(ValueError, match=r"rho=.* from the schedule at epoch 4\.") as error:
        rho_at(lambda epoch: value, 4)
    assert f"rho={value!r}" in str(error.value)


@pytest.mark.parametrize("value", [0.0, 1.7, float("inf"), "half", None])
def test_number_outside_its_range_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=f"rho={value!r}"):
        rho_at(value, 0)


def test_budget_is_the_share_of_the_full_step() -> None:
    table = chain_table(np.ones(4), np.ones(4), 4.0)
    assert step_budget(0.5, table) == 6.0
    assert backward_budget(0.5, table) == 2.0


def train(control: RatioControl, rho: float, *, delivered: float, speed: float = 100.0) -> float:
    """One interval on a device that delivers a share of the predicted savings; its true ratio."""
    asked = control.ask(rho)
    control.selected(asked)
    ratio = 1.0 - delivered * (1.0 - asked)
    control.step(speed * 40.0)  # something else ran
    for _ in range(30):
        control.step(speed * ratio)
        if control.needs_full_step:
            control.full_step(speed)
    return ratio


@pytest.mark.parametrize("delivered", [0.7, 0.9, 1.0, 1.2])
def test_control_reaches_rho_although_the_profile_is_off(delivered: float) -> None:
    control = RatioControl()
    ratios = []
    for _ in range(4):
        ratios.append(train(control, 0.5, delivered=delivered))
        control.learn()
        control.learn()  # once or twice is the same
    assert ratios[0] == pytest.approx(1.0 - 0.5 * delivered)
    assert ratios[-1] == pytest.approx(0.5, abs=0.01)


def test_control_is_not_misled_by_a_device_that_slows_down() -> None:
    control = RatioControl()
    train(control, 0.5, delivered=1.0)
    assert not control.needs_full_step
    for _ in range(50):
        control.step(150.0)  # three times as long: a load has started
        assert not control.is_off(0.5)
    assert control.needs_full_step
    control.full_step(300.0)
    assert control.achieved == pytest.approx(0.5)
    assert not control.is_off(0.5)
    control.learn()
    assert control.ask(0.5) == pytest.approx(0.5)


def test_control_notices_both_sides_of_the_band() -> None:
    control = RatioControl(band=0.1)
    for ratio, off in ((0.54, False), (0.56, True), (0.46, False), (0.44, True)):
        control.selected(0.5)
        control.delivered = 1.0
        for _ in range(control.enough):
            control.step(100.0 * ratio)
            assert not control.is_off(0.5)  # too few full steps to be sure
            control.full_step(100.0)
        assert control.is_off(0.5) is off


def test_good_profile_is_not_spoiled_by_noise() -> None:
    rng = np.random.default_rng(3)
    asked: dict[float, list[float]] = {0.02: [], 0.1: []}
    for deviation, asks in asked.items():
        for _ in range(50):
            control = RatioControl(doubt=deviation)
            control.selected(0.5)
            for _ in range(control.enough):
                for _ in range(3):
                    control.step(50.0 * rng.lognormal(sigma=0.15))
                control.full_step(100.0 * rng.lognormal(sigma=0.15))
            control.learn()
            asks.append(control.ask(0.5))
    assert np.std(asked[0.02]) < 0.6 * np.std(asked[0.1])


def test_doubt_follows_from_the_profile() -> None:
    profile = TimingProfile(1.0, (CostItem.of((0,), 1.0),), 1)
    assert doubt(profile) == 0.1
    assert doubt(dataclasses.replace(profile, uncertainty=0.03)) == pytest.approx(0.025)
    assert doubt(dataclasses.replace(profile, uncertainty=0.9)) == 0.1


def test_control_without_measurements_trusts_the_profile() -> None:
    control = RatioControl()
    control.selected(0.5)
    assert control.achieved is None
    assert control.thought == 0.5
    assert not control.is_off(0.5)
    assert control.ask(0.4) == 0.4


def test_full_steps_are_timed_apart_and_again_after_a_while() -> None:
    control = RatioControl(enough=2, every=20)
    control.selected(0.5)
    timed = []
    for count in range(40):
        if control.needs_full_step:
            timed.append(count)
            control.full_step(100.0)
        control.step(50.0)
    assert timed == [5, 10, 30]


def test_full_step_is_held_against_its_neighbours() -> None:
    control = RatioControl(enough=3)
    control.selected(0.5)
    for speed in (100.0, 110.0, 90.0):  # a device whose speed drifts
        for _ in range(3):
            control.step(0.5 * speed)
        control.full_step(speed)
    assert control.achieved == pytest.approx(0.5)


def test_control_asks_for_nothing_that_cannot_be() -> None:
    control = RatioControl()
    control.delivered = 0.5
    assert control.ask(0.4) == 0.0
    assert control.ask(0.4, smallest=0.35) == 0.35
    assert control.ask(1.0) == 1.0


@pytest.mark.parametrize("time", [0.0, -1.0, float("nan"), float("inf")])
def test_time_that_cannot_be_is_refused(time: float) -> None:
    with pytest.raises(ValueError, match=f"Received: {time!r}"):
        RatioControl().step(time)


@pytest.mark.parametrize("band", [0.0, 1.5, float("nan"), True])
def test_band_outside_its_range_is_refused(band: float) -> None:
    with pytest.raises(ValueError, match=f"band={band!r}"):
        RatioControl(band=band)


def test_deadline_sets_rho() -> None:
    assert rho_for_deadline(60.0, steps=100, full_step_seconds=1.0, other_seconds=10.0) == 0.5
    assert rho_for_deadline(600.0, steps=100, full_step_seconds=1.0) == 1.0


@pytest.mark.parametrize("seconds", [-5.0, 5.0, 44.9])
def test_deadline_that_cannot_be_met_says_what_is_needed(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"seconds={seconds} for .* 45 seconds are needed"):
        rho_for_deadline(
            seconds, steps=100, full_step_seconds=1.0, other_seconds=10.0, smallest=0.35
        )


def test_control_goes_on_where_it_was() -> None:
    one, two = RatioControl(), RatioControl()
    one.selected(0.5)
    for _ in range(4):
        for _ in range(6):
            one.step(60.0)
        one.full_step(100.0)
    one.learn()
    two.go_on(json.loads(json.dumps(one.state())))
    assert two.state() == one.state()
    assert (two.achieved, two.thought, two.is_off(0.5)) == (0.6, 0.6, one.is_off(0.5))
    assert two.ask(0.5) == one.ask(0.5) < 0.5

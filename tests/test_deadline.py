"""What a deadline allows, and what rubbish gets."""

from __future__ import annotations

import pytest
from clocks import Clock

from elastic_tf.deadline import Deadline
from elastic_tf.pace import Pace


def halfway(seconds: float = 1.0) -> Pace:
    """50 of 100 steps made, each taking so long."""
    clock = Clock()
    pace = Pace(clock, epochs=1, steps=100)
    pace.epoch_begins(0)
    pace.resume()
    for _ in range(50):
        clock.passes(seconds)
        pace.step(1, traced=False)
        pace.resume()
    return pace


def test_rho_spends_the_time_left() -> None:
    rho = Deadline(100.0).rho(halfway(), full_seconds=2.0, fixed_seconds=0.1, other_seconds=4.0)
    # aims at 98.5 of 100 seconds; 50 have passed, 9 are not for steps
    assert rho == pytest.approx((98.5 - 50.0 - 4.0 - 50 * 0.1) / (50 * 2.0))


def test_rho_is_one_where_the_time_is_long_and_nought_where_it_is_over() -> None:
    options = {"full_seconds": 2.0, "fixed_seconds": 0.0, "other_seconds": 0.0}
    assert Deadline(1000.0).rho(halfway(), **options) == 1.0
    assert Deadline(50.0).rho(halfway(), **options) == 0.0


@pytest.mark.parametrize(
    ("seconds", "cost", "can_grow", "off"),
    [
        (100.0, 0.0, True, True),  # ends at 100, hardly on time
        (101.0, 0.0, True, False),
        (95.0, 2.0, True, True),
        (95.0, 9.0, True, False),  # choosing anew would take longer than is saved
        (120.0, 2.0, True, True),  # far too early
        (120.0, 2.0, False, False),  # but all is trained
        (120.0, 30.0, True, False),
    ],
)
def test_deadline_chooses_anew_where_it_pays(seconds, cost, can_grow, off) -> None:
    deadline = Deadline(seconds)
    assert deadline.is_off(halfway(), other_seconds=0.0, cost=cost, can_grow=can_grow) is off


def test_training_is_over_before_a_step_that_would_be_late() -> None:
    assert not Deadline(53.0).is_over(halfway(), 1.0)
    assert Deadline(52.9).is_over(halfway(), 1.0)


@pytest.mark.parametrize(
    "seconds", [0, -5.0, float("nan"), float("inf"), True, "soon", [60]], ids=repr
)
def test_rubbish_is_refused(seconds: object) -> None:
    with pytest.raises(ValueError, match="`deadline` must be a finite number, above 0") as error:
        Deadline(seconds)
    assert f"deadline={seconds!r}" in str(error.value)


def test_impossible_deadline_is_refused_with_what_is_needed() -> None:
    with pytest.raises(ValueError, match="deadline=60 for 100 steps.* 75.0 seconds"):
        Deadline(60).check(100, 150.0, 0.5)


def test_data_of_unknown_length_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown length with deadline=60.*steps_per_epoch"):
        Deadline(60).check(None, 0.0, 0.5)


def test_expectation_names_both_ends() -> None:
    said = Deadline(60).expectation(100, 80.0, 0.35, rho=0.6)
    assert "100 steps take 80.0 s in full and 28.0 s at the smallest feasible rho, 0.350" in said
    assert said.endswith("Starts with rho 0.600.")


def test_light_steps_make_up_for_what_is_late() -> None:
    options = {"light_seconds": 0.5, "other_seconds": 2.0}
    # 50 steps to come, 48 seconds for them with the aim at 98.5: 3.5 too few
    assert Deadline(100.0).light_share(halfway(), cost=0.0, **options) == pytest.approx(3.5 / 25)
    assert Deadline(100.0).light_share(halfway(), cost=1.0, **options) == pytest.approx(4.5 / 25)
    assert Deadline(104.0).light_share(halfway(), cost=0.0, **options) == 0.0
    assert Deadline(50.0).light_share(halfway(), cost=0.0, **options) == 1.0


def test_light_steps_are_not_traced_for_a_moment() -> None:
    options = {"light_seconds": 0.5, "other_seconds": 0.0}
    assert Deadline(101.0).light_share(halfway(), cost=0.0, **options) > 0.0
    assert Deadline(101.0).light_share(halfway(), cost=1.0, **options) == 0.0


def test_too_many_light_steps_are_a_reason_to_choose_anew() -> None:
    options = {"other_seconds": 0.0, "cost": 2.0, "can_grow": True}
    assert not Deadline(80.0).is_off(halfway(), light_share=0.3, **options)
    assert Deadline(80.0).is_off(halfway(), light_share=0.6, **options)
    assert not Deadline(98.0).is_off(halfway(), light_share=0.6, **options)  # does not pay

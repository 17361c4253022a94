"""What a deadline allows, and what rubbish gets."""

from __future__ import annotations

import pytest
from clocks import Clock

from elastic_tf.budget.deadline import Deadline
from elastic_tf.budget.pace import Pace


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


@pytest.mark.parametrize("full_seconds", [0.013, 1.26, 1204.8, 123456.7])
def test_the_deadline_that_is_asked_for_is_enough(full_seconds: float) -> None:
    with pytest.raises(ValueError, match="Give more than") as error:
        Deadline(0.001).check(100, full_seconds, 0.5, spent=0.02)
    words = str(error.value).partition("Give more than ")[2]
    assert words.startswith(f"{(asked := float(words.split()[0])):.1f} seconds, and 5 to 20 on")
    Deadline(asked).check(100, full_seconds, 0.5, spent=0.02)


def test_data_of_unknown_length_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown length with deadline=60.*steps_per_epoch"):
        Deadline(60).check(None, 0.0, 0.5)


def test_time_that_has_passed_counts_for_what_is_impossible() -> None:
    Deadline(100).check(100, 150.0, 0.5, spent=20.0)
    with pytest.raises(ValueError, match="deadline=100 .* 30.0 seconds after.* 75.0 seconds"):
        Deadline(100).check(100, 150.0, 0.5, spent=30.0)


def test_expectation_names_both_ends() -> None:
    said = Deadline(60).expectation(100, 80.0, 0.35, rho=0.6, spent=9.0)
    assert "100 steps take 80.0 s in full and 28.0 s at the smallest feasible rho, 0.350" in said
    assert "9.0 s have passed until the first selection was made" in said
    assert said.endswith("Starts with rho 0.600.")


def test_deadline_over_before_the_first_step_is_refused() -> None:
    Deadline(60).check_first_step(59.9)
    with pytest.raises(ValueError, match="deadline=60, and 61.5 seconds .*Give more seconds"):
        Deadline(60).check_first_step(61.5)


def test_steps_that_cannot_be_made_in_the_time_left_are_announced() -> None:
    Deadline(60).warn_if_short(100, 80.0, 0.5, spent=20.0)
    # 40 seconds of steps in 30
    with pytest.warns(UserWarning, match="60 s is too short .*30.0 s have.*At least 25 steps"):
        Deadline(60).warn_if_short(100, 80.0, 0.5, spent=30.0)


def test_missed_deadline_is_told_with_where_the_seconds_went() -> None:
    pace = halfway()
    pace.clock.passes(8.0)
    pace.step(1, traced=True)
    pace.resume()
    pace.clock.passes(4.0)
    pace.ends()
    Deadline(62.0).warn_if_late(pace, selecting=0.0)
    with pytest.warns(UserWarning) as warned:
        Deadline(60.0).warn_if_late(pace, selecting=0.0)
    assert str(warned[0].message) == (
        "`fit` took 62.0 s, 2.0 s more than its deadline of 60 s: 0.0 s for selecting, 8.0 s for "
        "tracing, 50.0 s for steps, 4.0 s for the ends of epochs with validation, 0.0 s for all "
        "else. Give more seconds, train fewer epochs, or make `probe_size` smaller."
    )


@pytest.mark.parametrize(
    ("elapsed", "said"), [(9.0, "or it would end after"), (11.0, "the deadline of 10 s is over")]
)
def test_stopping_says_whether_the_deadline_is_over(elapsed: float, said: str) -> None:
    assert said in Deadline(10.0).stopping(3, elapsed=elapsed)


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


@pytest.mark.parametrize("between", [5.0, 7.3])
@pytest.mark.parametrize("slower", [None, 1.2, 2.54])
def test_mostly_light_steps_are_told(slower: float | None, between: float) -> None:
    with pytest.warns(UserWarning, match="of 60 s leaves little time") as told:
        assert Deadline(60).warn_if_light(
            102, 120, trained="2 of 16 tensors", slower=slower, between=between
        )
    said = str(told[0].message)
    assert "102 of the 120 steps train the cheapest mask alone, 2 of 16 tensors," in said
    assert ("takes 2.5 times what the profile says: profile this device again" in said) == (
        slower == 2.54
    )
    assert ("epochs to come take 7.3 s: a smaller validation set" in said) == (between == 7.3)


def test_a_few_light_steps_are_not_worth_a_warning() -> None:
    assert not Deadline(60).warn_if_light(48, 120, trained="2 of 16", slower=2.0, between=9.0)


def test_too_many_light_steps_are_a_reason_to_choose_anew() -> None:
    options = {"other_seconds": 0.0, "cost": 2.0, "can_grow": True}
    assert not Deadline(80.0).is_off(halfway(), light_share=0.3, **options)
    assert Deadline(80.0).is_off(halfway(), light_share=0.6, **options)
    assert not Deadline(98.0).is_off(halfway(), light_share=0.6, **options)  # does not pay

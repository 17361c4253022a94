"""Where the seconds of a training go."""

from __future__ import annotations

import pytest
from clocks import Clock

from elastic_tf.budget.pace import Pace


def epoch(
    pace: Pace, clock: Clock, number: int, *, first: float = 1.0, step: float = 1.0, ending=5.0
) -> None:
    """An epoch of four steps and a validation."""
    pace.epoch_begins(number)
    pace.resume()
    for seconds in (first, step, step, step):
        clock.passes(seconds)
        pace.step(1, traced=False)
        clock.passes(100.0)  # the callback's own work
        pace.resume()
    clock.passes(ending)


def test_steps_beginnings_and_endings_of_epochs_are_told_apart() -> None:
    clock = Clock()
    pace = Pace(clock, epochs=4, steps=4)
    epoch(pace, clock, 0, first=3.0, ending=20.0)  # the first validation is traced
    epoch(pace, clock, 1, first=3.0, ending=5.0)
    pace.epoch_begins(2)
    assert pace.step_seconds == 1.0
    assert pace.ending == pace.longest_ending == 5.0
    assert pace.steps_left == 8
    assert pace.fixed_left == 2 * (5.0 + 3.0 - 1.0)
    assert pace.left == 8 + 14.0
    assert pace.elapsed == 800.0 + 12.0 + 25.0


def test_half_of_the_first_ending_is_expected_of_those_after_the_next() -> None:
    clock = Clock()
    pace = Pace(clock, epochs=6, steps=4)
    epoch(pace, clock, 0, ending=20.0)
    pace.epoch_begins(1)
    assert pace.longest_ending == 20.0
    assert pace.fixed_left == 20.0 + 4 * 10.0


def test_seconds_are_kept_by_what_they_went_into() -> None:
    clock = Clock()
    pace = Pace(clock, epochs=1, steps=4)
    epoch(pace, clock, 0, ending=0.0)
    clock.passes(7.0)
    pace.step(1, traced=True, is_light=True)
    pace.resume()
    clock.passes(5.0)
    pace.ends()
    assert (pace.in_steps, pace.in_tracing, pace.in_endings) == (4.0, 7.0, 5.0)


def test_nothing_is_known_before_the_first_step() -> None:
    pace = Pace(Clock(), epochs=4, steps=4)
    pace.epoch_begins(0)
    assert (pace.step_seconds, pace.left, pace.retrace, pace.ending) == (None, None, None, 0.0)
    assert pace.steps_left == 16


def test_length_of_an_epoch_is_learned_from_the_first() -> None:
    clock = Clock()
    pace = Pace(clock, epochs=3, steps=None)
    epoch(pace, clock, 0)
    assert pace.steps_left is None
    pace.epoch_begins(1)
    assert pace.steps_left == 8


def test_tracing_is_what_the_first_step_takes_longer() -> None:
    clock = Clock()
    pace = Pace(clock, epochs=1, steps=100)
    pace.epoch_begins(0)
    pace.resume()
    clock.passes(8.0)
    pace.step(1, traced=True)
    pace.resume()
    for _ in range(5):
        clock.passes(4.0)
        pace.step(2, traced=False)  # two steps in a call
        pace.resume()
    assert pace.step_seconds == 2.0
    assert pace.retrace == 6.0
    assert pace.steps_per_call == 2


def test_stray_step_is_not_expected_again() -> None:
    clock = Clock()
    pace = Pace(clock, epochs=1, steps=100)
    pace.epoch_begins(0)
    pace.resume()
    for seconds in (1.0, *[1.0] * 9, 91.0):
        clock.passes(seconds)
        pace.step(1, traced=False)
        pace.resume()
    assert pace.step_seconds == pytest.approx((9 + 3) / 10)


def test_steps_before_a_selection_tell_of_those_after_it() -> None:
    clock = Clock()
    pace = Pace(clock, epochs=2, steps=40)
    pace.selected(0.8)
    epoch(pace, clock, 0)
    pace.selected(0.4, fixed_seconds=0.2)
    assert pace.step_seconds == pytest.approx(0.2 + 0.5 * 0.8)
    assert pace.measured == 0
    pace.resume()
    for _ in range(30):
        clock.passes(0.7)
        pace.step(1, traced=False)
        pace.resume()
    assert pace.step_seconds == pytest.approx(0.7)  # enough of its own


def test_light_steps_are_not_taken_for_those_of_the_selection() -> None:
    clock = Clock()
    pace = Pace(clock, epochs=2, steps=40)
    epoch(pace, clock, 0)
    clock.passes(0.1)
    assert pace.step(1, traced=True, is_light=True) == pytest.approx(5.1)
    assert (pace.step_seconds, pace.retrace, pace.done) == (1.0, None, 5)


def test_endings_are_expected_as_slow_as_the_steps_have_become() -> None:
    clock = Clock()
    pace = Pace(clock, epochs=4, steps=4)
    for number in range(3):
        epoch(pace, clock, number, ending=5.0)
    pace.epoch_begins(3)
    assert pace.ending == pytest.approx(5.0)
    for _ in range(30):
        clock.passes(2.0)
        pace.step(1, traced=False)
        pace.resume()
    assert pace.longest_ending == pytest.approx(10.0, rel=0.05)


def test_speed_is_that_of_a_part_of_what_is_still_to_come() -> None:
    clock = Clock()
    pace = Pace(clock, epochs=1, steps=1000)
    pace.epoch_begins(0)
    pace.resume()
    for seconds in [1.0] * 101 + [2.0] * 99:  # a load starts
        clock.passes(seconds)
        pace.step(1, traced=False)
        pace.resume()
    assert pace.span == 100  # of 800
    assert pace.step_seconds == pytest.approx(1.99)


def test_span_has_bounds() -> None:
    for steps, span in ((10, 30), (800, 100), (100_000, 400)):
        pace = Pace(Clock(), epochs=1, steps=steps)
        pace.epoch_begins(0)
        assert pace.span == span

"""The budget is kept: ratios and deadlines on a device that is not what its profile says."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from clocks import Device, table
from timed import EPOCHS, STEPS, Passing, run

pytestmark = pytest.mark.slow
MOSTLY_LIGHT = pytest.mark.filterwarnings("ignore:The deadline of .* leaves little time")


class Masks(tf.keras.callbacks.Callback):
    """The model's mask at the end of each epoch."""

    def on_train_begin(self, logs=None) -> None:
        self.masks: list[np.ndarray] = []

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.masks.append(self.model.mask)


def spent(device: Device) -> float:
    """Mean step time / full step time of what was trained; full steps beside it left out."""
    trained = [mask for mask in device.calls if not mask.all()]
    return float(np.mean([device.step(mask) / device.speed for mask in trained]))


def test_ratio_is_achieved_although_savings_are_not_delivered() -> None:
    device = Device(table(), delivered=0.7)
    elastic = run(device, control=0.3)
    first, second, *_ = elastic.selections
    assert first.achieved_ratio > 0.7 * 1.05
    assert (second.reason, second.epoch) == ("ratio", 0)
    assert second.selection.rho < 0.7
    for record in elastic.selections[1:]:
        assert record.achieved_ratio == pytest.approx(device.step(record.mask))
        assert record.achieved_ratio <= 0.7
    assert spent(device) <= 0.7 * 1.01


def test_more_is_trained_where_savings_are_larger_than_predicted() -> None:
    device = Device(table(), delivered=1.3)
    elastic = run(device, control=0.3)
    counts = [record.mask.sum() for record in elastic.selections]
    assert counts[1] > counts[0]
    assert 0.6 < elastic.selections[-1].achieved_ratio <= 0.7


def test_open_loop_trains_what_the_profile_says() -> None:
    device = Device(table(), delivered=0.7)
    elastic = run(device, control=0.0)
    assert [record.reason for record in elastic.selections] == ["interval"] * 2
    assert [record.achieved_ratio for record in elastic.selections] == [None, None]
    assert not any(mask.all() for mask in device.calls)  # no full step


def test_load_on_the_whole_device_changes_no_ratio() -> None:
    device = Device(table())
    elastic = run(device, Passing(device, from_1=2.5, from_4=0.8), control=0.3)
    assert [record.reason for record in elastic.selections] == ["interval"] * 2
    assert [record.achieved_ratio for record in elastic.selections] == pytest.approx(
        [record.predicted_ratio for record in elastic.selections]
    )


def test_control_spends_no_more_than_its_share() -> None:
    device = Device(table(), delivered=0.7)
    run(device, control=0.05)
    full = sum(device.speed for mask in device.calls if mask.all())
    assert 0 < full <= 0.05 * device.clock.now


def test_training_too_short_for_it_goes_on_uncontrolled() -> None:
    device = Device(table(), delivered=0.7, tracing=1000.0)
    elastic = run(device, control=0.05)
    assert [record.achieved_ratio for record in elastic.selections] == [None, None]


def test_history_tells_what_was_asked_and_achieved() -> None:
    device = Device(table(), delivered=0.7)
    elastic = run(device, control=0.3)
    history = elastic.model.history.history
    assert history["rho"] == [0.7] * EPOCHS
    assert history["achieved_ratio"][0] == pytest.approx(elastic.selections[1].achieved_ratio)
    assert history["predicted_ratio"][-1] == elastic.selections[-1].predicted_ratio


@pytest.mark.parametrize(("tracing", "deadline"), [(6.0, 110.0), (3.0, 90.0), (3.0, 130.0)])
def test_selections_are_fewer_where_tracing_them_would_take_the_time_of_steps(
    tracing: float, deadline: float
) -> None:
    device = Device(table(), tracing=tracing)
    passing = Passing(device, validation=0.5)
    options = {"deadline": deadline, "interval": 1, "epochs": 12, "steps": 10}
    elastic = run(device, passing, importance_seconds=0.5, **options)
    records = elastic.selections
    taken = sum(record.seconds_importance + record.seconds_retrace for record in records[1:])
    assert taken <= 0.2 * deadline * 1.1  # an interval is a whole number of epochs
    assert len(records) > 2
    assert min(record.mask.sum() for record in records) > 1  # never the cheapest one alone
    assert 0.9 * deadline <= device.clock.now <= deadline


def test_selections_are_as_many_as_asked_for_where_there_is_time() -> None:
    device = Device(table(), tracing=1.0)
    elastic = run(device, importance_seconds=0.5, deadline=200.0, interval=1)
    due = [record.epoch for record in elastic.selections if record.reason == "interval"]
    assert due == list(range(EPOCHS))


@MOSTLY_LIGHT
@pytest.mark.parametrize(("deadline", "delivered"), [(150.0, 0.8), (200.0, 1.0), (260.0, 0.9)])
def test_deadline_is_kept_with_everything_counted(deadline: float, delivered: float) -> None:
    device = Device(table(), delivered=delivered, tracing=2.0)
    run(device, Passing(device, validation=2.0), importance_seconds=1.5, deadline=deadline)
    assert 0.97 * deadline <= device.clock.now <= deadline


@pytest.mark.parametrize(("epoch", "load"), [(1, 1.4), (3, 0.9), (4, 1.4)])
def test_deadline_is_kept_when_the_speed_changes(epoch: int, load: float) -> None:
    device = Device(table(), tracing=1.0)
    passing = Passing(device, validation=1.0, **{f"from_{epoch}": load})
    elastic = run(device, passing, importance_seconds=1.0, deadline=200.0)
    assert 0.97 * 200 <= device.clock.now <= 200.0
    assert elastic.model.optimizer.iterations == STEPS * EPOCHS  # nothing is left out
    is_light = any(record.light_steps for record in elastic.selections)
    assert is_light or "deadline" in {record.reason for record in elastic.selections}


def test_light_steps_keep_the_deadline_without_another_selection() -> None:
    device = Device(table(), delivered=0.9, tracing=3.0)
    elastic = run(device, deadline=180.0, interval=EPOCHS)
    (record,) = elastic.selections
    cheapest = min(device.calls, key=device.step)
    assert record.light_steps == sum(np.array_equal(mask, cheapest) for mask in device.calls) > 0
    assert device.step(cheapest) < device.step(record.mask)
    assert 0.97 * 180 <= device.clock.now <= 180.0


def test_a_training_of_mostly_light_steps_says_so_once() -> None:
    device = Device(table(), speed=1.5, tracing=6.0)
    with pytest.warns(UserWarning, match="leaves little time") as told:
        elastic = run(device, deadline=170.0)
    (said,) = [str(one.message) for one in told if "leaves little time" in str(one.message)]
    assert "of the 240 steps train the cheapest mask alone, 1 of 10 tensors" in said
    light, steps = (sum(record.light_steps for record in elastic.selections), EPOCHS * STEPS)
    assert light > 0.4 * steps
    assert device.clock.now <= 170.0


def test_light_steps_end_with_the_epoch() -> None:
    device = Device(table(), delivered=0.8)
    seen = Masks()
    elastic = run(device, seen, deadline=180.0, interval=EPOCHS)
    assert any(record.light_steps for record in elastic.selections)
    trained = [record.mask.tobytes() for record in elastic.selections]
    assert len(seen.masks) == EPOCHS
    assert {mask.tobytes() for mask in seen.masks} <= set(trained)


def test_device_far_from_its_profile_is_noticed_at_once() -> None:
    device = Device(table(), speed=0.6)  # the profile was made under load
    elastic = run(device, deadline=120.0)
    assert (elastic.selections[1].reason, elastic.selections[1].epoch) == ("deadline", 0)
    assert 0.97 * 120 <= device.clock.now <= 120.0


def test_training_stops_rather_than_be_late(capsys) -> None:
    device = Device(table(), tracing=1.0)
    elastic = run(device, Passing(device, validation=1.0, from_4=2.5), deadline=200.0)
    assert elastic.selections[-1].light_steps > 0
    assert device.step(device.calls[-1]) == min(device.step(mask) for mask in device.calls)
    assert 0.8 * 200 <= device.clock.now <= 200.0
    assert "steps early, or it would end after the deadline of 200 s" in capsys.readouterr().out


def test_training_that_is_fast_enough_ends_early_and_says_so(capsys) -> None:
    device = Device(table())
    elastic = run(device, deadline=1000.0)
    assert device.clock.now < 300.0
    assert [record.rho for record in elastic.selections] == [1.0, 1.0]
    said = capsys.readouterr().out
    assert "by the profile the 240 steps take 240.0 s in full" in said
    assert "Starts with rho 1.000: every tensor that is expected to lower the loss" in said


def test_impossible_deadline_stops_before_training() -> None:
    device = Device(table())
    # the cheapest tensor takes 12 of 30 parts of a full step: 0.4 * 240 seconds
    with pytest.raises(ValueError, match="deadline=90 for 240 steps.* 96.0 seconds"):
        run(device, deadline=90)
    assert device.calls == []


@MOSTLY_LIGHT
def test_epochs_that_do_not_fit_are_left_out(capsys) -> None:
    device = Device(table())
    run(device, Passing(device, validation=30.0), deadline=110.0)
    assert device.clock.now <= 110.0
    assert "Training stops" in capsys.readouterr().out


def test_first_selection_longer_than_the_deadline_is_refused_before_the_first_step() -> None:
    device = Device(table())
    with pytest.raises(ValueError, match="deadline=120, and 130.0 seconds until the importance"):
        run(device, importance_seconds=130.0, deadline=120.0)
    assert device.calls == []


def test_first_selection_that_leaves_too_little_time_is_announced_before_the_first_step() -> None:
    device = Device(table())  # the suite makes errors of warnings
    with pytest.raises(UserWarning, match="120 s is too short for all 240 steps: 80.0 s have"):
        run(device, importance_seconds=80.0, deadline=120.0)
    assert device.calls == []


@MOSTLY_LIGHT
@pytest.mark.filterwarnings("ignore:The deadline of 120 s is too short")
def test_deadline_is_kept_after_a_first_selection_that_left_too_little_time(capsys) -> None:
    device = Device(table(), tracing=2.0)
    run(device, importance_seconds=80.0, deadline=120.0)
    assert 80.0 < device.clock.now <= 120.0
    assert "Training stops" in capsys.readouterr().out


def test_what_passes_after_the_last_callback_counts() -> None:
    device = Device(table())

    class Late(tf.keras.callbacks.Callback):
        """Keras takes its time to leave `fit`."""

        def on_train_end(self, logs=None) -> None:
            device.clock.passes(50.0)

    with pytest.warns(UserWarning, match="more than its deadline of 150 s"):
        run(device, after=[Late()], deadline=150.0)


def test_missed_deadline_is_told_at_the_end() -> None:
    device = Device(table())
    said = r"`fit` took \d+.\d s, \d+.\d s more than its deadline of 110 s: 0.0 s for selecting"
    with pytest.warns(UserWarning, match=said):
        run(device, Passing(device, validation=200.0), deadline=110.0)
    assert device.clock.now > 200.0  # the first validation cannot be foreseen

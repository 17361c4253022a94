"""Ratios and deadlines are kept, by the clock of a device that is not what its profile says."""

import chosen
import pytest
import tensorflow as tf
from clocks import EPOCHS, STEPS, Device, Passing, run

from elastic_tf.choose.budget.settings import Control, Deadline

OFTEN = Control(share=0.3)


def cheap(share: float) -> dict:
    """A device whose forward pass takes longer than the profile says."""
    return {"overhead": share, "noise": 0.05, "tracing": 1.0}


def test_ratio_is_achieved_although_savings_are_not_delivered():
    device = Device(**cheap(0.5))
    elastic = run(device, 0.7, control=OFTEN)
    first, second, *_ = elastic.selections
    assert device.ratio(first.mask) > 0.7 * 1.05
    assert second.reason == "ratio"
    assert second.selection.rho < 0.7
    for record in elastic.selections[1:]:
        assert device.ratio(record.mask) <= 0.7 * 1.05
        assert record.achieved_ratio == pytest.approx(device.ratio(record.mask), abs=0.05)
    assert elastic.model.history.history["achieved_ratio"][-1] <= 0.7 * 1.07


def test_load_on_the_whole_device_changes_no_ratio():
    device = Device(noise=0.05, drift=0.02)
    elastic = run(device, 0.7, Passing(device, from_1=2.5, from_4=0.8), control=OFTEN)
    assert [record.reason for record in elastic.selections] == ["interval"] * 2
    assert elastic.selections[0].achieved_ratio == pytest.approx(0.7, abs=0.05)


def test_a_clock_that_jumps_is_no_step():
    class Jump(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            device.now += {2: -3600.0, 4: 3600.0}.get(epoch, 0.0)

    device = Device(**cheap(0.5))
    elastic = run(device, 0.7, Jump(), control=OFTEN)
    assert device.ratio(elastic.selections[-1].mask) <= 0.7 * 1.05
    assert elastic.model.optimizer.iterations == STEPS * EPOCHS


class Overhead(Passing):
    """A device on which every step takes longer from the third epoch on."""

    def on_epoch_begin(self, epoch, logs=None) -> None:
        self.device.overhead = 0.5 if epoch >= 2 else 0.0


@pytest.mark.filterwarnings("ignore:Training stops", "ignore:`fit` took")
@pytest.mark.parametrize(("rho", "reason"), [(0.7, "ratio"), (Deadline(170.0), "deadline")])
def test_early_selection_does_what_can_be_done(rho, reason):
    device = Device(noise=0.05)
    elastic = run(device, rho, Overhead(device), control=OFTEN)
    early = [record for record in elastic.selections if record.reason == reason]
    assert early and early[-1].predicted_ratio < 0.7


def test_control_spends_no_more_than_its_share():
    device = Device(**cheap(0.5))
    run(device, 0.7, control=Control(share=0.1))
    full = sum(seconds for seconds, mask in zip(device.times, device.calls) if mask.all())
    assert 0 < full <= 0.1 * device.now


# the device, the deadline, changes of its speed, the training
DEADLINES = {
    "slower than its profile, drifting": (
        {"speed": 1.4, "noise": 0.1, "drift": 0.01, "tracing": 2.0, "validating": 1.0},
        200.0,
        {},
        {},
    ),
    "faster than its profile": ({"speed": 0.6, "noise": 0.1, "tracing": 2.0}, 120.0, {}, {}),
    "another load from the middle on": (
        {"noise": 0.1, "tracing": 1.0, "validating": 1.0},
        200.0,
        {"from_3": 1.5},
        {},
    ),
    "mostly overhead, other tensors": (
        {"overhead": 0.4, "uneven": 0.5, "noise": 0.1, "tracing": 1.0},
        240.0,
        {},
        {},
    ),
    "one long epoch": (
        {"overhead": 0.1, "noise": 0.1, "drift": 0.01, "tracing": 2.0},
        170.0,
        {},
        {"epochs": 1, "steps": 240},
    ),
    "epochs that are short to selections": (
        {"tracing": 6.0, "validating": 0.5},
        110.0,
        {},
        {"epochs": 12, "steps": 10, "interval": 1},
    ),
}


@pytest.mark.filterwarnings("ignore:Training stops")
@pytest.mark.parametrize(
    ("made", "seconds", "speeds", "training"), DEADLINES.values(), ids=DEADLINES
)
def test_deadline_is_kept_and_used(made, seconds, speeds, training):
    device = Device(**made)
    elastic = run(device, Deadline(seconds), Passing(device, **speeds), selecting=1.5, **training)
    assert 0.9 * seconds <= device.now <= 1.01 * seconds
    steps = training.get("epochs", EPOCHS) * training.get("steps", STEPS)
    assert int(elastic.model.optimizer.iterations) >= 0.98 * steps


def test_training_stops_rather_than_be_late():
    device = Device(tracing=1.0, validating=1.0)
    with pytest.warns(UserWarning, match=r"stops \d+ steps early, .* deadline of 200 s"):
        run(device, Deadline(200.0), Passing(device, from_4=3.0))
    assert 0.9 * 200 <= device.now <= 202.0


def test_training_that_is_fast_enough_ends_early():
    device = Device()
    elastic = run(device, Deadline(1000.0))
    assert device.now < 300.0
    assert [record.rho for record in elastic.selections] == [1.0, 1.0]


def test_selections_are_fewer_where_they_would_take_over_a_fifth_of_the_time():
    device = Device(tracing=6.0)
    elastic = run(device, Deadline(110.0), selecting=0.5, interval=1, epochs=12, steps=10)
    due = [record for record in elastic.selections if record.reason == "interval"]
    assert 1 < len(due) <= 4


def test_impossible_deadline_is_refused_before_training():
    device = Device()
    # the cheapest tensor takes 12 of 30 parts of a full step: 0.4 * 240 seconds
    with pytest.raises(ValueError, match=r"Deadline\(90\) for 240 steps.* second 96.0"):
        run(device, Deadline(90.0))
    assert device.calls == []


def test_deadline_over_data_of_unknown_length_is_refused():
    unknown = chosen.dataset().filter(lambda x, y: True)
    with pytest.raises(ValueError, match=r"unknown length with Deadline\(60\).*steps_per_epoch"):
        chosen.elastic().fit(unknown, verbose=0, callbacks=[chosen.callback(rho=Deadline(60.0))])


def test_a_validation_of_known_seconds_is_foreseen():
    device = Device(validating=30.0)  # the first one takes 90
    run(device, Deadline(170.0, validation=90.0), epochs=1, steps=80)
    assert 0.9 * 170.0 <= device.now <= 170.0
    with pytest.raises(ValueError, match=r"Deadline\(110\) for 80 steps.* second 122.0"):
        run(device, Deadline(110.0, validation=90.0), epochs=1, steps=80)


def test_missed_deadline_is_told_at_the_end():
    device = Device(validating=30.0)  # the first validation cannot be foreseen
    with pytest.warns(UserWarning, match="more than its deadline of 110 s"):
        run(device, Deadline(110.0), epochs=1, steps=80)


def test_no_time_has_passed_when_a_loop_of_ones_own_begins():
    model, one = chosen.elastic(), chosen.callback(rho=Deadline(60.0))
    called = tf.keras.callbacks.CallbackList([one], model=model, epochs=2, steps=4)
    model.stop_training = False
    called.on_train_begin()
    model.make_train_function()
    for epoch in range(2):
        called.on_epoch_begin(epoch)
        data = iter(chosen.dataset())
        for step in range(4):
            called.on_train_batch_begin(step)
            called.on_train_batch_end(step, model.train_function(data))
        called.on_epoch_end(epoch)
    called.on_train_end()
    assert model.optimizer.iterations == 8 and not model.stop_training
    assert {record.rho for record in one.selections} == {1.0}

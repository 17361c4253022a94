"""Ratios and deadlines are kept, by the clock of a device that is not what its profile says."""

import dataclasses
import re

import chosen
import numpy as np
import pytest
import tensorflow as tf
from clocks import EPOCHS, STEPS, Device, Passing, data, run, table
from heads import SCE, classifier, clusters

import elastic_tf as et
from elastic_tf.callback import ElasticCallback
from elastic_tf.choose.budget.settings import Control, Deadline
from elastic_tf.model import ElasticModel
from elastic_tf.train.head.solve import SolveHead, solve_head
from elastic_tf.train.samples import Samples

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
            device.now += 3600.0 * (epoch == 2)

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
    assert [record.rho for record in elastic.selections] == [1.0]


@pytest.mark.filterwarnings("ignore:Training stops")
def test_with_a_deadline_importance_is_evaluated_once():
    device = Device(tracing=6.0)
    elastic = run(device, Deadline(110.0), selecting=0.5, interval=1, epochs=12, steps=10)
    assert sum(record.reason == "interval" for record in elastic.selections) == 1
    assert 0.95 * 110.0 <= device.now <= 110.0


def test_a_deadline_too_short_for_a_whole_training_ends_in_time():
    device = Device()
    # the cheapest tensor takes 12 of 30 parts of a full step: 0.4 * 240 seconds
    with pytest.warns(UserWarning, match=r"stops \d+ steps early, .* deadline of 90 s"):
        elastic = run(device, Deadline(90.0))
    assert 0.95 * 90.0 <= device.now <= 90.0
    assert elastic.selections[0].selection.mask.sum() == 1


def test_where_no_step_is_left_the_solved_head_is_handed_out():
    (x, y), model = clusters(20), ElasticModel.from_model(classifier())
    model.compile("adam", SCE(from_logits=True), metrics=["accuracy"])
    before, solver = model.get_weights(), SolveHead()
    callbacks = [ElasticCallback(rho=Deadline(1e-3)), solver]
    samples = Samples(x, y, batch_size=5)
    with pytest.warns(UserWarning) as told:
        history = model.fit(samples, epochs=3, callbacks=callbacks, verbose=0).history
    assert any("Training stops 12 steps early" in str(one.message) for one in told)
    assert model.optimizer.iterations == 0 and len(history["loss"]) == 1
    for old, new in zip(before[:-2], model.get_weights()[:-2]):
        np.testing.assert_array_equal(old, new)
    found, again = model.get_weights()[-2:], solve_head(model, samples)
    assert solver.solution.samples == again.samples == 20
    for one, other in zip(found, model.get_weights()[-2:]):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_deadline_over_data_of_unknown_length_is_refused():
    unknown = chosen.dataset().filter(lambda x, y: True)
    with pytest.raises(ValueError, match=r"unknown length with Deadline\(60\).*steps_per_epoch"):
        chosen.elastic().fit(unknown, verbose=0, callbacks=[chosen.callback(rho=Deadline(60.0))])


@pytest.mark.parametrize("seconds", [170.0, 110.0])
@pytest.mark.filterwarnings("ignore:Training stops")
def test_the_first_validation_is_foreseen_from_its_size(seconds):
    device = Device(validating=30.0)  # the first one takes 90
    profile = dataclasses.replace(table(), batch_size=4)  # a third of a second
    held = data(270)
    run(device, Deadline(seconds), epochs=1, steps=80, profile=profile, validation_data=held)
    assert 0.9 * seconds <= device.now <= seconds


def test_missed_deadline_is_told_at_the_end():
    device = Device(validating=30.0)  # the profile does not tell what a validation takes
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


X, Y = np.zeros((30, 4), np.float32), np.arange(30) % 3
SAMPLES = tf.data.Dataset.from_tensor_slices((X[:11], Y[:11]))
BATCHES = SAMPLES.batch(4)
VALIDATIONS = {
    "arrays": ({"validation_data": (X[:11], Y[:11])}, 11),
    "weighted": ({"validation_data": (X[:11], Y[:11], np.ones(11))}, 11),
    "a share": ({"validation_split": 0.5}, 15),
    "batches of unknown size": ({"validation_data": BATCHES}, 12),
    "batches of known size": ({"validation_data": SAMPLES.batch(5, drop_remainder=True)}, 10),
    "some steps": ({"validation_data": BATCHES.repeat(), "validation_steps": 5}, 20),
    "no one knows": ({"validation_data": BATCHES.filter(lambda x, y: True)}, 0),
    "none": ({}, 0),
}


@pytest.mark.parametrize(("given", "rows"), VALIDATIONS.values(), ids=VALIDATIONS)
def test_the_size_of_a_validation_is_known_before_it(given, rows):
    class Looking(tf.keras.callbacks.Callback):
        def on_train_begin(self, logs=None) -> None:
            self.found = self.model._elastic.data.rows_to_validate(4)

    model, looking = ElasticModel.from_model(classifier()), Looking()
    model.compile("adam", SCE(from_logits=True))
    model.fit(X, Y, batch_size=5, verbose=0, callbacks=[looking], **given)
    assert looking.found == rows


def test_the_seconds_of_a_summary_add_up():
    device = Device(tracing=3.0, validating=2.0)
    elastic = run(device, 0.7, Passing(device), selecting=1.5)
    said = elastic.summary().splitlines()[-1]
    parts = dict(re.findall(r"([a-z, ]+?) (\d+\.\d)(?:, |;)", said.removeprefix("Seconds: ")))
    assert float(said.split()[-3]) == pytest.approx(device.now, abs=0.1)
    assert sum(map(float, parts.values())) == pytest.approx(device.now, abs=0.5)
    assert {"steps", "first steps", "selected", "ends of epochs"} <= {one.strip() for one in parts}


def test_a_summary_tells_the_head_and_what_passed_before_an_interruption(tmp_path):
    def fit(folder, *callbacks) -> et.ElasticCallback:
        tf.keras.backend.clear_session()  # a backup knows the head by its name
        model, samples = et.ElasticModel.from_model(classifier()), Samples(*clusters(24))
        model.compile("sgd", SCE(from_logits=True))
        elastic = et.ElasticCallback(rho=0.999, backup=et.Backup(tmp_path / folder))
        model.fit(samples, epochs=2, verbose=0, callbacks=[elastic, et.SolveHead(), *callbacks])
        return elastic

    def breaks(epoch, logs):
        if epoch == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fit("cut", tf.keras.callbacks.LambdaCallback(on_epoch_begin=breaks))
    assert "before the interruption " in fit("cut").summary()
    assert fit("whole")._ledger.seconds["head"] > 0.0

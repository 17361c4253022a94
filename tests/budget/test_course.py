"""The course of a training in so many seconds, by a clock of its own."""

import contextlib
import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from clocks import Device, table

import elastic_tf as et
from elastic_tf.choose.budget import course
from elastic_tf.timing.profile import CostItem
from elastic_tf.train.head import solve
from elastic_tf.train.head.solve import HeadSolution

ROWS, STEPS = 400, 100
SOLVED = HeadSolution("head", 1.0, 1.0, 0.5, 0.1, ROWS, 0.0)


class Stub:
    """A model whose steps, heads and validations only take time, more of it from a moment on.

    Its heads have the `errors`, its validations the `scores` (accuracy and loss), in turn; the last
    one stays. Its `weights` are a number that each step moves on by one.
    """

    def __init__(self, device, *, moment=math.inf, step=math.inf, warms=0, slower=1.0, head=0.0):
        self.device, self.moment, self.step, self.slower = device, moment, step, slower
        self.warms = warms
        self.solving, self.judging = head, 0.0
        self.optimizer = SimpleNamespace(learning_rate=1.0)
        rows = SimpleNamespace(keeps=lambda _: False, beside=lambda _: None)
        self._elastic = SimpleNamespace(rows=rows, tracing=0.0)
        self.cache_prefix, self.stop_training = (lambda epochs: None), False
        self.rates, self.plans, self.weights, self.validations = [], [], 0, 0
        self.errors, self.scores, self.loss = [0.1], [(0.5, 1.0)], "mse"
        self.set_plan = self.plans.append

    @property
    def speed(self):
        is_slow = self.device.now >= self.moment or len(self.rates) > self.step
        is_slow |= 0 < len(self.rates) <= self.warms
        return self.slower if is_slow else 1.0

    def passes(self, seconds):
        self.device.now += seconds * self.speed

    def head(self, *_, until=None, layer=None, scale=None):
        self.until, started = until, self.device.now
        self.passes(self.solving)
        error = self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
        if error is None:
            raise ValueError("Features must be finite.")
        self.weights += layer is not None  # solved again
        return dataclasses.replace(SOLVED, error=error, seconds=self.device.now - started)

    def evaluated(self):
        self.passes(self.judging)
        self.validations += 1
        accuracy, loss = self.scores.pop(0) if len(self.scores) > 1 else self.scores[0]
        return {"loss": loss} | ({} if accuracy is None else {"accuracy": accuracy})

    def get_weights(self):
        return [np.array(self.weights, np.float64)]

    def set_weights(self, weights):
        (self.weights,) = weights

    def fit(self, samples, *, epochs, callbacks, verbose):
        """As Keras goes about it."""
        (one,) = callbacks
        for epoch in range(epochs):
            one.on_epoch_begin(epoch)
            for batch in range(samples.steps):
                self.rates.append(self.optimizer.learning_rate)
                self.device.speed = self.speed
                self.device.call(self.plans[-1].mask)
                self.weights += 1
                one.on_train_batch_end(batch)
                if self.stop_training:
                    break
            one.on_epoch_end(epoch, {})
            if self.stop_training:
                break
        one.on_train_end()


@pytest.fixture
def trained(monkeypatch):
    """A function that runs a course of a stub by the clock of a device."""

    def run(device, stub, seconds, epochs=5, judges=0, labels=1, profile=None, views=1):
        monkeypatch.setattr(course, "time", SimpleNamespace(perf_counter=device.clock))
        monkeypatch.setattr(course, "Forward", lambda *given: None)
        monkeypatch.setattr(course, "prior_profile", lambda *given: profile or table())
        monkeypatch.setattr(course, "begin", lambda *given: None)
        monkeypatch.setattr(course, "first_step_seconds", lambda model, share: 0.5)
        monkeypatch.setattr(course, "depth", lambda model: np.arange(1.0, 11.0))
        for module in (course, solve):
            monkeypatch.setattr(module, "solve_head", stub.head)
        monkeypatch.setattr(course.Course, "_evaluated", lambda _: stub.evaluated())
        samples = SimpleNamespace(
            take=lambda rows: (np.zeros((4, 1)),), batch_size=4, rows=ROWS, steps=STEPS
        )
        samples.count, samples.views, samples.of_views = ROWS, views, lambda views: samples
        samples.arrays = (tf.zeros(4),)
        validation = (np.zeros(judges), np.zeros((judges, labels))) if judges else None
        stub.judging = judges * 1e-6 * (profile or table()).t_forward / 4
        told = {"seconds": seconds, "started": device.now, "epochs": epochs, "verbose": 0}
        one = course.Course(stub, samples, validation, **told)
        one.run()
        return one

    return run


@pytest.mark.parametrize("seed", range(30))
def test_a_machine_that_gets_slower_on_its_way_ends_in_time(trained, seed):
    rng = np.random.default_rng(seed)
    seconds, epochs = rng.uniform(250.0, 900.0), int(rng.integers(1, 6))
    device = Device(now=rng.uniform(0.0, 1e4), noise=0.05)
    moment = device.now + rng.uniform(0.2, 0.6) * seconds
    options = {"slower": rng.uniform(1.0, 3.0), "head": rng.uniform(0.2, 0.4) * ROWS / 12.0}
    stub, begins = Stub(device, moment=moment, **options), device.now
    one = trained(device, stub, seconds, epochs, judges=int(rng.integers(0, 60)))
    assert device.now - begins <= seconds
    rates = np.array(stub.rates)
    assert (rates >= 0.0).all() and (rates <= course.RATE * (1 + 1e-9)).all()
    assert rates[-1] < 0.05 * course.RATE
    whole = epochs * STEPS
    assert len(rates) == whole or device.now - begins > 0.9 * seconds  # no time is given away
    assert sum(one.seconds.values()) == pytest.approx(device.now - begins)


@pytest.mark.parametrize(("step", "warms"), [(5, 0), (20, 0), (20, 4)])
def test_a_machine_that_gets_slower_at_once_ends_in_time(trained, step, warms):
    """Even where the first steps were slow too."""
    device = Device(noise=0.05)
    trained(device, Stub(device, step=step, warms=warms, slower=3.0, head=15.0), 250.0)
    assert 200.0 < device.now <= 250.0


def quick():
    """A step takes a second, a 21st of it forward."""
    unit = np.full(10, 1e6 / 21)
    return et.TimingProfile.from_chain(t_dw=unit, t_dy=unit, t_forward=unit[0])


def test_no_step_begins_that_would_end_too_late(trained):
    for seconds in np.arange(45.0, 60.0, 0.5):
        device = Device()
        trained(device, Stub(device, step=10, slower=3.0), seconds, profile=quick())
        assert 0.93 * seconds < device.now <= seconds


def test_no_step_follows_a_validation_that_took_the_last_seconds(trained):
    """The seconds are over about where the first of two epochs is."""
    made = []
    for seconds in np.arange(45.0, 75.0, 0.6):
        stub = Stub(Device())
        trained(stub.device, stub, seconds, epochs=2, judges=75, profile=quick())
        assert 0.93 * seconds < stub.device.now <= seconds
        made.append(len(stub.rates))
    assert min(made) < STEPS < max(made)


def test_a_head_that_takes_the_time_of_the_steps_is_all_there_is(trained):
    stub = Stub(Device(), head=50.0)
    with pytest.warns(UserWarning, match="Received: 100. The head alone was solved"):
        trained(stub.device, stub, 100.0, profile=quick())
    assert stub.rates == [] and stub.device.now <= 100.0


@pytest.mark.parametrize("limit", ["seconds", "epochs"])
def test_the_rate_rises_and_falls_to_nearly_zero(trained, limit):
    device = Device()
    stub = Stub(device)
    seconds, epochs = (170.0, 5) if limit == "seconds" else (900.0, 1)
    trained(device, stub, seconds, epochs)
    rates = np.array(stub.rates)
    top = int(rates.argmax())
    assert (np.diff(rates[2:top]) > 0.0).all() and (np.diff(rates[top:]) < 0.0).all()
    assert top / len(rates) == pytest.approx(0.15, abs=0.03)
    assert rates[top] == pytest.approx(course.RATE, rel=0.02)
    assert rates[0] < 0.01 * rates[top] and 0.0 <= rates[-1] < 0.01 * rates[top]
    assert (len(rates) == epochs * STEPS) == (limit == "epochs")


@pytest.mark.parametrize(
    ("seconds", "epochs", "share", "passes"),
    [
        (50.0, 5, 0.405 / 1.3, 2),  # few passes, of as much as is left of 0.405 epochs
        (50.0, 1, 0.400, 2),
        (150.0, 5, 0.4, 4),  # then more passes
        (400.0, 5, 3.844 / 5, 5),  # then more tensors
        (900.0, 5, 1.0, 5),
    ],
)
def test_more_seconds_train_more(trained, seconds, epochs, share, passes):
    """Features and heads take 6.7 s and 5.7 times the share, a first step half a second."""
    stub, given, profile = Stub(Device()), [], quick()
    stub.cache_prefix = given.append
    one = trained(stub.device, stub, seconds, epochs, profile=profile)
    assert one.selection.rho == pytest.approx(share, abs=2e-3)
    assert one.share == pytest.approx(profile.step_time(stub.plans[0]) / profile.t_full)
    assert given == [passes]


@pytest.mark.parametrize("views", [1, 2, 3])
def test_features_of_all_views_are_kept_for_the_heads_however_few_epochs_take_them(trained, views):
    stub, given = Stub(Device()), []
    stub.cache_prefix = given.append
    trained(stub.device, stub, 50.0, 1, profile=quick(), views=views)
    assert given == [views + 1]  # so many take what is computed once for each view


def test_more_is_trained_where_activations_are_kept(trained):
    prefix = tuple(CostItem(tuple(range(k + 1)), 1e6 / 30) for k in range(10))
    profile, counts = dataclasses.replace(table(), prefix=prefix), []
    for keeps in (True, False):
        stub = Stub(Device())
        stub._elastic.rows.keeps = lambda epochs, keeps=keeps: keeps
        counts.append(trained(stub.device, stub, 200.0, profile=profile).selection.mask.sum())
    assert counts[0] > counts[1]


def test_less_than_a_little_is_not_begun(trained):
    """Ends and beginning take 47.2 s of the profile, and 0.05 epochs another 5."""
    for seconds, begins in ((55.0, True), (51.0, False)):
        stub = Stub(Device(now=7.0))
        warned = pytest.warns(UserWarning, match="here 57 or more")
        with contextlib.nullcontext() if begins else warned:
            one = trained(stub.device, stub, seconds)
        assert bool(stub.rates) == begins == (one.selection is not None)
        assert one.head is not None
        assert begins or stub.until == pytest.approx(7.0 + 0.99 * 51.0)


@pytest.mark.parametrize("validated", [False, True])
@pytest.mark.parametrize("errors", [[0.1, 0.2], [0.1, math.nan], [0.1, None], [0.1, 0.1]])
def test_a_head_that_is_worse_at_the_end_is_not_taken(trained, errors, validated):
    stub = Stub(Device())
    stub.errors = [*errors]
    stub.scores = [(0.5, 1.0), (0.2, 1.0), (0.2, 1.0), (0.9, 1.0)]  # head, epoch, last, again
    trained(stub.device, stub, 900.0, epochs=1, judges=12 * validated)
    is_better = errors[1] == 0.1
    assert stub.weights == (STEPS + 1 if is_better else 0)
    assert stub.validations == (3 + 2 * is_better if validated else 0)


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ([(0.5, 1.0), (0.6, 2.0), (0.4, 2.0)], 2),  # two standard errors of 12 are 0.28
        ([(0.5, 1.0), (0.6, 2.0), (0.3, 2.0)], 1),
        ([(0.5, 1.0), (0.2, 2.0), (0.2, 0.5)], 0),
        ([(0.1, 1.0), (0.9, 2.0), (0.5, 0.5)], 1),  # far above the head, far below the last weights
        ([(0.5, 1.0), (0.5, 1.0), (0.5, 1.0)], 2),
        ([(0.5, 1.0), (0.9, math.nan), (0.9, math.nan)], 0),
        ([(0.5, 1.0), (0.9, math.inf), (0.4, 1.0)], 2),
        ([(None, 1.0), (None, 0.9), (None, 1.0)], 2),
        ([(None, 1.0), (None, 0.9), (None, 1.1)], 1),
    ],
)
@pytest.mark.parametrize("epoch", [(0.99, 0.1), (0.0, math.nan)])
def test_the_end_is_kept_that_is_as_good_as_what_was_before(trained, scores, kept, epoch):
    """Of the head, the last weights and the head solved again; epochs before do not count."""
    stub = Stub(Device())
    head, *rest = scores
    stub.scores = [head, (head[0] and epoch[0], epoch[1]), *rest]
    one = trained(stub.device, stub, 900.0, epochs=1, judges=12)
    assert stub.weights == (0, STEPS, STEPS + 1)[kept] and not stub.scores[1:]
    number = 1 if head[0] is None else 0
    assert one.reached == [scores[k][number] for k in (0, kept)]


def test_a_head_without_a_finite_loss_stays_where_no_other_is_better(trained):
    stub = Stub(Device())
    stub.scores = [(None, math.nan)]
    one = trained(stub.device, stub, 900.0, epochs=1, judges=12)
    assert stub.weights == 0 and one.reached == []


@pytest.mark.parametrize(("labels", "kept"), [(1, STEPS + 1), (4, 0)])
def test_every_label_of_a_sample_is_judged(trained, labels, kept):
    """A loss of 0.2 is 1.4 standard errors of 12 labels, and 2.8 of 48."""
    stub = Stub(Device())
    stub.scores, stub.loss = [(0.5, 1.0)] + 3 * [(0.3, 1.0)], "binary_crossentropy"
    trained(stub.device, stub, 900.0, epochs=1, judges=12, labels=labels)
    assert stub.weights == kept


@pytest.mark.parametrize(("judges", "each"), [(100, True), (1200, False)])
def test_epochs_are_validated_where_that_takes_little(trained, judges, each):
    stub = Stub(Device())
    trained(stub.device, stub, 900.0, judges=judges, profile=quick())
    assert len(stub.rates) == 5 * STEPS and stub.validations == 4 + 5 * each


@pytest.mark.parametrize("loss", [0.9, 1.1])
@pytest.mark.parametrize(("head", "looks"), [(30.0, True), (90.0, False)])
def test_weights_between_are_judged_where_that_takes_little(trained, head, looks, loss):
    stub = Stub(Device(), head=head)
    stub.scores = [(0.5, 1.0)] * 4 + [(0.6, loss)]  # head, epoch, last, again, between
    one = trained(stub.device, stub, 900.0, epochs=1, judges=12)
    is_between = looks and loss < 1.0
    assert stub.weights == pytest.approx(0.6 * (STEPS + 1) + 1 if is_between else STEPS + 1)
    assert stub.validations == 4 + looks
    assert one.reached == [0.5, 0.6 if is_between else 0.5]
    assert stub.device.now < 900.0

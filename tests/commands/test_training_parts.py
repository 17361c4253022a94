"""What a training reads, measures and writes, part by part."""

from __future__ import annotations

import numpy as np
import pytest
from networks import crossentropy, images, network, step_flops

from elastic_tf.app.commands.training import measurement, recording, sources
from elastic_tf.app.runs import run as runs
from elastic_tf.files.json_form import to_ranges
from elastic_tf.memory import energy
from elastic_tf.memory.activations import activation_bytes
from elastic_tf.model import ElasticModel
from elastic_tf.plan import Plan
from elastic_tf.train.engine import modes


def load(source, **options):
    return sources.load(
        str(source), **{"channels": 3, "image_size": 16, "batch_size": 4, **options}
    )


def saved(path, channels=1, size=8, scale=1.0):
    x = np.random.default_rng(0).integers(0, 256, (12, size, size, channels), np.uint8)
    x = x if scale == 1.0 else (scale * x).astype(np.float32)
    y = np.arange(12) % 3
    np.savez(path, x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return path


def test_domains_of_the_digits_differ_and_have_the_channels_of_the_model():
    found = [load(name, channels=k) for name, k in zip(sources.DOMAINS, (1, 3, 1, 3))]
    shapes = [tuple(one.test.element_spec[0].shape[1:]) for one in found]
    assert shapes == [(16, 16, 1), (16, 16, 3)] * 2
    first = [next(iter(one.test))[0].numpy()[..., :1].tobytes() for one in found]
    assert len(set(first)) == len(sources.DOMAINS)


def test_arrays_become_images_of_the_models_size(tmp_path):
    small, fitting = saved(tmp_path / "small.npz"), saved(tmp_path / "a.npz", channels=3, size=16)
    assert load(small).test.element_spec[0].shape[1:] == (16, 16, 3)
    x, _ = next(iter(load(fitting, validation_share=0.25).test))
    np.testing.assert_array_equal(x, np.load(fitting)["x_test"][:4])


@pytest.mark.parametrize(
    ("source", "options", "received"),
    [
        ("tfds:cifar", {}, "name='cifar'. Did you mean 'cifar10'"),
        ("tfds:mnist", {"channels": 1}, "Received: 'tfds:mnist' for a model that takes grey"),
        ("3.npz", {"channels": 1}, "1 channels. Received: 3 channels"),
        ("from_0_to_1.npz", {}, "float32 from 0 to 1 .*Multiply x_train"),
    ],
)
def test_images_that_do_not_fit_are_refused(source, options, received, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "3.npz", channels=3)
    saved(tmp_path / "from_0_to_1.npz", scale=1 / 255)
    with pytest.raises(ValueError, match=received):
        load(source, **options)


def epochs(*accuracies, energy="no sensor"):
    return [
        {
            "val_accuracy": accuracy,
            "val_loss": 1.0,
            "seconds": 10.0,
            "overhead_seconds": 2.0,
            "evaluation_seconds": 3.0,
            "steps": 5,
            "peak_memory_bytes": 100 + index,
            "energy_joules": energy,
        }
        for index, accuracy in enumerate(accuracies)
    ]


def test_summary_adds_up_the_epochs():
    found = measurement.summary(epochs(0.5, 0.7, 0.6))
    assert found["accuracy"] == 0.6  # the last, not the best
    assert found["training_seconds"] == 30 and found["seconds_with_evaluation"] == 39
    assert found["share_beside_steps"] == pytest.approx(6 / 30)
    assert found["steps"] == 15 and found["seconds_per_step"] == 2
    assert found["peak_memory_bytes"] == 102


@pytest.mark.parametrize(
    ("energies", "total"),
    [((2.5, 2.5), 5.0), ((2.5, None), None), (("no sensor", 2.5), "no sensor")],
)
def test_energy_is_never_invented(energies, total):
    found = [epoch for energy in energies for epoch in epochs(0.5, energy=energy)]
    assert measurement.summary(found)["energy_joules"] == total


@pytest.fixture(scope="module")
def model():
    made = ElasticModel.from_model(network())
    made.compile("sgd", crossentropy())
    return made


def ticking(readings):
    """A meter that counts a joule at each reading, until it fails."""
    left = iter([1.0] * readings)

    def advance():
        joules = next(left, None)
        if joules is None:
            raise OSError("gone")
        return joules

    return energy.Meter("ticks", 3600.0, advance)


@pytest.mark.parametrize(
    ("sensor", "joules"),
    [(None, ["no sensor"] * 2), (ticking(2), [1.0, None])],
)
def test_history_holds_seconds_energy_and_what_was_trained(tmp_path, model, sensor, joules):
    clock, run = recording.TrainingClock(), runs.create(tmp_path, {"seed": 0})
    recorder = recording.Recorder(run, clock, sensor=sensor, head_seconds=1.5)
    full, (x, y) = Plan.full(len(model.tensors)), images()
    plan = full.filtered(2, modes.kernels(model, "filtered:2"))
    model.set_plan(plan)
    model.fit(x, y, epochs=2, batch_size=10, verbose=0, callbacks=[clock, recorder])
    model.set_plan(full)
    found = runs.load(tmp_path).history
    assert runs.trained_plans(found) == [plan] * 2
    assert [epoch["energy_joules"] for epoch in found] == joules
    assert [epoch.get("head_seconds") for epoch in found] == [1.5, None]
    for epoch in found:
        assert epoch["seconds"] >= epoch["overhead_seconds"] >= 0
        assert epoch["evaluation_seconds"] == 0 and epoch["steps"] > 0
        assert epoch["trained"] == [[0, epoch["tensors"] - 1]]


def record(*plans):
    """What a run writes of epochs under these plans."""
    return [
        {"steps": 2, "trained": to_ranges(plan.mask), "tensors": len(plan), **plan.to_json()}
        for plan in plans
    ]


def test_costs_are_those_of_each_epoch_and_its_modes(model):
    batch = tuple(part[:10] for part in images())
    count = len(model.tensors)
    full, head = Plan.full(count), Plan.from_mask(np.arange(count) > 2)
    filtered = full.filtered(2, modes.kernels(model, "filtered:2"))
    history = record(head, full, filtered, head)
    found = measurement.result(history, model, model, batch, None, timed=False)
    cheap, dear, between = (step_flops(model, *batch, plan) for plan in (head, full, filtered))
    assert max(cheap, between) < dear
    assert found["flops_by_epoch"] == [cheap, dear, between, cheap]
    assert found["flops"] == 2 * (2 * cheap + dear + between)
    assert found["flops_ratio"] == pytest.approx(found["flops"] / (8 * dear))
    assert found["activation_bytes"] == activation_bytes(model, batch, full) > 0
    assert found["achieved_ratio"] is None


def test_what_was_computed_before_the_steps_is_in_no_cost_of_them(model):
    batch = tuple(part[:10] for part in images())
    head = Plan.from_mask(np.arange(len(model.tensors)) == len(model.tensors) - 1)
    (whole,), (cut,) = (
        measurement.result(record(head), model, model, batch, None, cached=cached, timed=False)[
            "flops_by_epoch"
        ]
        for cached in (False, True)
    )
    assert whole == step_flops(model, *batch, head) and 0 < cut < 0.2 * whole


def test_speed_is_measured_against_another_full_model_and_leaves_nothing_behind(model):
    full = ElasticModel.from_model(network())
    full.compile("sgd", crossentropy())
    before = [variable.numpy().tobytes() for variable in model.variables + full.variables]
    head = Plan.from_mask(np.arange(len(model.tensors)) == len(model.tensors) - 1)
    batch = tuple(part[:10] for part in images())
    for cached in (False, True):
        ratio, seconds = measurement.speed(model, head, full, batch, repeats=1, cached=cached)
        assert ratio > 0 and seconds > 0
    assert before == [variable.numpy().tobytes() for variable in model.variables + full.variables]

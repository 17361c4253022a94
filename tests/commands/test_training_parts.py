"""What a training reads, measures and writes, part by part."""

import numpy as np
import pytest
from networks import crossentropy, images, network

from elastic_tf.app import runs
from elastic_tf.app.commands import harness, recording
from elastic_tf.app.commands.settings import Step
from elastic_tf.model import ElasticModel
from elastic_tf.plan import Plan
from elastic_tf.train.engine import modes


def load(source, **options):
    return harness.images(
        str(source), **{"channels": 3, "image_size": 16, "batch_size": 4, **options}
    )


def saved(path, channels=1, size=8, scale=1.0):
    x = np.random.default_rng(0).integers(0, 256, (12, size, size, channels), np.uint8)
    x = x if scale == 1.0 else (scale * x).astype(np.float32)
    y = np.arange(12) % 3
    np.savez(path, x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    return path


def test_domains_of_the_digits_differ_and_have_the_channels_of_the_model():
    found = [load(name, channels=k) for name, k in zip(harness.DOMAINS, (1, 3, 1, 3))]
    shapes = [tuple(one.test.element_spec[0].shape[1:]) for one in found]
    assert shapes == [(16, 16, 1), (16, 16, 3)] * 2
    first = [next(iter(one.test))[0].numpy()[..., :1].tobytes() for one in found]
    assert len(set(first)) == len(harness.DOMAINS)


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


def epochs(*accuracies):
    return [
        {
            "val_accuracy": accuracy,
            "val_loss": 1.0,
            "seconds": 10.0,
            "evaluation_seconds": 3.0,
            "steps": 5,
            "peak_memory_bytes": 100 + index,
        }
        for index, accuracy in enumerate(accuracies)
    ]


def test_summary_adds_up_the_epochs():
    found = recording.summary(epochs(0.5, 0.7, 0.6))
    assert found["accuracy"] == 0.6  # the last, not the best
    assert found["training_seconds"] == 30 and found["seconds_with_evaluation"] == 39
    assert found["steps"] == 15 and found["seconds_per_step"] == 2
    assert found["peak_memory_bytes"] == 102


@pytest.fixture(scope="module")
def model():
    made = ElasticModel.from_model(network())
    made.compile("sgd", crossentropy())
    return made


def test_history_holds_seconds_and_what_was_trained(tmp_path, model):
    recorder = recording.Recorder(runs.create(tmp_path, {"seed": 0}), head_seconds=1.5)
    full, (x, y) = Plan.full(len(model.tensors)), images()
    plan = full.filtered(2, modes.kernels(model, "filtered:2"))
    model.set_plan(plan)
    model.fit(x, y, epochs=2, batch_size=10, verbose=0, callbacks=[recorder])
    model.set_plan(full)
    found = runs.load(tmp_path).history
    assert runs.trained_plans(found) == [plan] * 2
    assert [epoch.get("head_seconds") for epoch in found] == [1.5, None]
    for epoch in found:
        assert epoch["seconds"] > epoch["evaluation_seconds"] == 0 and epoch["steps"] > 0
        assert epoch["trained"] == [[0, epoch["tensors"] - 1]]


def test_classes_are_counted_in_the_images(arrays, tmp_path):
    for name in ("train/a", "train/b", "train/c", "test/a", "test/b", "test/c"):
        (tmp_path / name).mkdir(parents=True)
    step = Step(model="digits_resnet", input_size=16)
    sources = (arrays, tmp_path, "digits", "tfds:cifar100")
    assert [harness.counts(step, str(one))[0] for one in sources] == [2, 3, 10, 100]

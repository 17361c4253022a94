"""Importance of several updates in a row: against training, and nothing left behind."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from evaluated import READINGS, elastic, linear, noisy, points, same, state
from networks import MORE_OPTIMIZERS, crossentropy, images, network

from elastic_tf.importance import measures
from elastic_tf.model import ElasticModel


@pytest.mark.parametrize("optimizer", list(MORE_OPTIMIZERS))
def test_nothing_is_left_behind_by_several_updates(optimizer: str) -> None:
    model = elastic(optimizer)
    before = state(model)
    for reading in READINGS:
        measures.loss_decrease(model, *images(), gradient=reading, steps=2, micro_batch_size=5)
        assert same(before, state(model)), reading


@pytest.mark.parametrize("reading", READINGS)
def test_training_goes_on_as_without_several_updates(reading: str) -> None:
    def train(evaluate: bool) -> list[np.ndarray]:
        tf.keras.utils.set_random_seed(7)
        model = noisy()
        model.fit(*images(), batch_size=8, verbose=0)
        if evaluate:
            measures.loss_decrease(model, *images(seed=1), gradient=reading, steps=3)
        model.fit(*images(), batch_size=8, verbose=0)
        return state(model)

    assert same(train(evaluate=True), train(evaluate=False))


@pytest.mark.parametrize("optimizer", ["sgd", "sgdw", "adam", "adamw", "schedule"])
def test_updates_are_those_that_training_makes(optimizer: str) -> None:
    model = ElasticModel.from_model(network())
    model.compile(MORE_OPTIMIZERS[optimizer](), crossentropy())
    x, y = (tf.convert_to_tensor(part[:18]) for part in images())
    model.train_on_batch(x, y)
    worth = measures.loss_decrease(model, x, y, gradient="before", steps=3)
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    gradients = tape.gradient(loss, model.tensors)
    old = [tensor.numpy() for tensor in model.tensors]
    for batch in (slice(0, 6), slice(6, 12), slice(12, 18)):
        model.train_on_batch(x[batch], y[batch])
    moved = [tensor.numpy() - before for tensor, before in zip(model.tensors, old)]
    expected = [-(g.numpy() * dw).sum() for g, dw in zip(gradients, moved)]
    np.testing.assert_allclose(worth, expected, rtol=1e-2, atol=1e-5)


def test_mean_of_before_and_after_is_the_decrease_by_several_updates() -> None:
    model = linear()
    x, y = points()
    before, after = (
        measures.loss_decrease(model, x, y, gradient=reading, steps=4).sum()
        for reading in ("before", "after")
    )
    start = model.evaluate(x, y, verbose=0)
    for k in range(0, len(x), 3):
        model.train_on_batch(x[k : k + 3], y[k : k + 3])
    decrease = start - model.evaluate(x, y, verbose=0)
    assert (before + after) / 2.0 == pytest.approx(decrease, rel=1e-4)


@pytest.mark.parametrize("reading", READINGS)
def test_updates_are_made_of_micro_batches(reading: str) -> None:
    model = linear()
    x, y = points(16)
    whole = measures.loss_decrease(model, x, y, gradient=reading, steps=2)
    parts = measures.loss_decrease(model, x, y, gradient=reading, steps=2, micro_batch_size=2)
    np.testing.assert_allclose(parts, whole, rtol=1e-4)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True])
def test_steps_below_one_are_refused(steps: object) -> None:
    with pytest.raises(ValueError, match=f"`steps` must be .*Received: {steps}"):
        measures.loss_decrease(linear(), *points(), steps=steps)


def test_more_steps_than_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="steps=13 for 12 samples"):
        measures.loss_decrease(linear(), *points(), gradient="before", steps=13)


@pytest.mark.parametrize("reading", READINGS)
def test_each_step_has_a_micro_batch_however_large_they_may_be(reading: str) -> None:
    model, x, y = linear(), *points()
    whole = measures.loss_decrease(model, x, y, gradient=reading, steps=3)
    parts = measures.loss_decrease(model, x, y, gradient=reading, steps=3, micro_batch_size=12)
    np.testing.assert_array_equal(whole, parts)

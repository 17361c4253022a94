"""A device without room for the probe: smaller micro-batches, and the same importance."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf
from evaluated import READINGS, linear, points, same, state

from elastic_tf.importance import measures
from elastic_tf.importance.evaluation import Evaluator


@pytest.fixture
def holding(monkeypatch):
    """Lets a pass fail that holds more than so many samples, once it has run."""
    original = Evaluator.gradients

    def hold(most: int, error: Exception) -> list[int]:
        passes = []

        def gradients(self, batches, *, part="alone"):
            found = original(self, batches, part=part)
            passes.append(max(len(data[1]) for _, data in batches))
            if passes[-1] > most:
                raise error
            return found

        monkeypatch.setattr(Evaluator, "gradients", gradients)
        return passes

    return hold


FULL = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor\nhint")


@pytest.mark.parametrize("reading", READINGS)
def test_the_importance_is_the_same_in_smaller_micro_batches(reading, holding):
    model = linear()
    model.fit(*points(), verbose=0)
    expected = measures.loss_decrease(model, *points(), gradient=reading)
    before = state(model)
    holding(2, FULL)
    with pytest.warns(UserWarning, match="micro-batches of 6 samples: OOM .* tensor. .* of 1."):
        found = measures.loss_decrease(model, *points(), gradient=reading, micro_batch_size=6)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert same(before, state(model))


@pytest.mark.parametrize("reading", READINGS)
def test_several_steps_fit_into_little_memory_too(reading, holding):
    model = linear()
    expected = measures.loss_decrease(model, *points(), gradient=reading, steps=3)
    holding(1, FULL)
    with pytest.warns(UserWarning, match="in micro-batches of 1."):
        found = measures.loss_decrease(model, *points(), gradient=reading, steps=3)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_it_stays_so_small_without_another_warning(holding):
    model = linear()
    passes = holding(8, MemoryError())
    with pytest.warns(UserWarning, match="of 20 samples: MemoryError. .* micro-batches of 5."):
        measures.gradient_magnitude(model, *points(20))
    passes.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measures.gradient_magnitude(model, *points(20))
        measures.loss_decrease(model, *points(20), micro_batch_size=4)
    assert max(passes) == 5


def test_a_device_that_cannot_hold_a_sample_is_told_so(holding):
    model = linear()
    model.fit(*points(), verbose=0)
    before = state(model)
    holding(0, FULL)
    with pytest.raises(MemoryError, match="Received: OOM when allocating tensor. Use smaller"):
        measures.loss_decrease(model, *points(20))
    assert same(before, state(model))
    assert Evaluator.of(model).most_samples is None

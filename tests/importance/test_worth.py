"""Importance again and again: compared, with weights and with a second probe."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from elastic_tf.choose.importance import measures
from elastic_tf.choose.importance.probe import Draws
from elastic_tf.choose.importance.tracking import Worth, cosine_similarity

X, Y = np.ones((6, 2), np.float32), np.arange(6)
MODEL = SimpleNamespace(distribute_strategy=tf.distribute.get_strategy())


def sequence(*values: list[float]):
    """An importance function that answers these, one after the other."""
    turns = iter(values)
    return lambda model, x, y: np.array(next(turns), float)


def evaluated(worth: Worth) -> tuple[np.ndarray, float | None]:
    return worth.evaluate(MODEL, *worth.draw(MODEL, lambda **shapes: None, 0))


def test_similarity_is_that_of_consecutive_evaluations() -> None:
    worth = Worth(sequence([1, 0], [1, 1], [0, 0]), Draws((X, Y), 4, 0))
    similarities = [evaluated(worth)[1] for _ in range(3)]
    assert similarities == [None, pytest.approx(0.5**0.5), 0.0]


def test_function_is_given_what_it_takes() -> None:
    seen = {}

    def watch(model, x, y, *, sample_weight=None, micro_batch_size=None, gradient_data=None):
        seen.update(weight=sample_weight, size=micro_batch_size, data=gradient_data)
        return np.ones(2)

    probe = Draws((X, Y, np.arange(6.0)), 6, 0)
    other = Draws((X, Y), 3, 0, name="gradient_probe")
    evaluated(Worth(watch, probe, gradient_probe=other, micro_batch_size=2))
    assert sorted(seen["weight"].numpy()) == [0, 1, 2, 3, 4, 5]
    assert seen["size"] == 2
    assert len(seen["data"][0]) == 3


def test_second_probe_needs_a_function_that_takes_it() -> None:
    with pytest.raises(ValueError, match="Received: 'weight_magnitude'"):
        Worth(measures.weight_magnitude, Draws((X, Y), 4, 0), gradient_probe=Draws((X, Y), 4, 0))


def test_cosine_similarity_of_nothing_is_nought() -> None:
    assert cosine_similarity(np.zeros(3), np.ones(3)) == 0.0
    assert cosine_similarity(np.ones(3), -np.ones(3)) == pytest.approx(-1.0)

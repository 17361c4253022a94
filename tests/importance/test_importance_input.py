"""What importance cannot be evaluated on is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from evaluated import READINGS, L, elastic, linear, noisy, points, same, state
from networks import images, network

from elastic_tf.importance import measures
from elastic_tf.model import ElasticModel


@pytest.mark.parametrize("gradient", READINGS)
def test_loss_that_is_not_finite_is_refused_and_harms_nothing(gradient: str) -> None:
    model = noisy()
    x, y = images()
    measures.loss_decrease(model, x, y, gradient=gradient)
    before = state(model)
    with pytest.raises(ValueError, match="loss=nan"):
        measures.loss_decrease(model, np.full_like(x, np.nan), y, gradient=gradient)
    assert same(before, state(model))
    assert np.isfinite(measures.loss_decrease(model, x, y, gradient=gradient)).all()


def test_gradient_that_is_not_finite_is_refused() -> None:
    inputs = L.Input((1,))
    output = L.Lambda(tf.sqrt)(L.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs))
    model = ElasticModel(inputs, output)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="importance (nan|inf|-inf) of tensor 0"):
        measures.loss_decrease(model, np.ones((4, 1)), np.ones((4, 1)), gradient="before")


def test_model_that_is_not_compiled_is_refused() -> None:
    model = ElasticModel.from_model(network())
    with pytest.raises(ValueError, match=f"{model.name!r} without an optimizer"):
        measures.loss_decrease(model, *images())


def test_empty_probe_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Received: \[0\] samples"):
        measures.loss_decrease(linear(), *points(0))


def test_probe_of_uneven_lengths_is_refused() -> None:
    x, y = points()
    with pytest.raises(ValueError, match=r"Received: \[11, 12\] samples"):
        measures.loss_decrease(linear(), x, y[:-1])


def test_unknown_reading_is_refused() -> None:
    with pytest.raises(ValueError, match="gradient='later'"):
        measures.loss_decrease(linear(), *points(), gradient="later")


@pytest.mark.parametrize("size", [0, -4])
def test_micro_batch_of_no_sample_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"`micro_batch_size` .* Received: {size}"):
        measures.loss_decrease(linear(), *points(), micro_batch_size=size)


def test_uneven_gradient_data_are_named() -> None:
    x, y = points()
    with pytest.raises(ValueError, match=r"of `gradient_data`. Received: \[11, 12\] samples"):
        measures.loss_decrease(linear(), x, y, gradient_data=(x, y[:-1]))


def test_gradient_data_with_another_reading_is_refused() -> None:
    with pytest.raises(ValueError, match="gradient='before'"):
        measures.loss_decrease(elastic(), *images(), gradient="before", gradient_data=images())

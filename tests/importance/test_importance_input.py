"""What importance cannot be evaluated on is refused."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from evaluated import READINGS, L, linear, noisy, points, same, state
from networks import images, network

from elastic_tf.choose import importance
from elastic_tf.model import ElasticModel


@pytest.mark.parametrize("gradient", READINGS[1:])
def test_loss_that_is_not_finite_is_refused_and_harms_nothing(gradient: str) -> None:
    model = noisy()
    x, y = images()
    importance.loss_decrease(model, x, y, gradient=gradient)
    before = state(model)
    with pytest.raises(ValueError, match="loss=nan"):
        importance.loss_decrease(model, np.full_like(x, np.nan), y, gradient=gradient)
    assert same(before, state(model))
    assert np.isfinite(importance.loss_decrease(model, x, y, gradient=gradient)).all()


def test_gradient_that_is_not_finite_is_refused() -> None:
    inputs = L.Input((1,))
    output = L.Lambda(tf.sqrt)(L.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs))
    model = ElasticModel(inputs, output)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="importance (nan|inf|-inf) of tensor 0"):
        importance.loss_decrease(model, np.ones((4, 1)), np.ones((4, 1)), gradient="before")


def test_model_that_is_not_compiled_is_refused() -> None:
    model = ElasticModel.from_model(network())
    with pytest.raises(ValueError, match=f"{model.name!r} without an optimizer"):
        importance.loss_decrease(model, *images())


X, Y = points()


@pytest.mark.parametrize(
    ("probe", "options", "received"),
    [
        (points(0), {}, "Received: 0 in x, 0 in y"),
        ((X, Y[:-1]), {}, "Received: 12 in x, 11 in y"),
        ((X, Y), {"gradient": "later"}, "gradient='later'"),
        ((X, Y), {"micro_batch_size": 0}, "`micro_batch_size` .* Received: 0"),
    ],
)
def test_what_cannot_be_is_refused(probe: Any, options: dict[str, Any], received: str) -> None:
    with pytest.raises(ValueError, match=received):
        importance.loss_decrease(linear(), *probe, **options)

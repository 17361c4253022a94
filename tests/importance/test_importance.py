"""Importance: the formula against its definition, and nothing left behind."""

import gc
import random
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from networks import (
    CLASSES,
    IMAGE,
    MORE_OPTIMIZERS,
    L,
    crossentropy,
    half_precision,
    images,
    network,
)

from elastic_tf import stack
from elastic_tf.choose import importance
from elastic_tf.choose.importance import Evaluator, as_probe, batches_of
from elastic_tf.model import ElasticModel
from elastic_tf.train import optimizers

READINGS = ("before", "after", "other")
FUNCTIONS = {
    "loss_decrease": importance.loss_decrease,
    "gradient_magnitude": importance.gradient_magnitude,
    "weight_magnitude": importance.weight_magnitude,
    "own": lambda model, x, y: np.arange(len(model.tensors), dtype=np.float64),
}


def elastic(optimizer: str = "sgd", *, fitted: bool = True) -> ElasticModel:
    """A compiled network with batch normalisation, trained for three steps."""
    model = ElasticModel.from_model(network())
    model.compile(MORE_OPTIMIZERS[optimizer](), crossentropy(), metrics=["accuracy"])
    if fitted:
        model.fit(*images(), batch_size=8, verbose=0)
    return model


def noisy() -> ElasticModel:
    """A network with augmentation and two kinds of dropout, one with a seed of its own."""
    tf.random.set_seed(7)
    inputs = L.Input(IMAGE)
    x = L.RandomFlip()(inputs)
    x = L.Conv2D(4, 3)(x)
    x = L.BatchNormalization()(x)
    x = L.Dropout(0.5, seed=3)(x)
    x = L.GaussianNoise(0.5)(L.Flatten()(x))
    model = ElasticModel(inputs, L.Dense(CLASSES)(L.Dropout(0.3)(x)))
    model.compile(MORE_OPTIMIZERS["sgd"](), crossentropy(), metrics=["accuracy"])
    return model


def linear(learning_rate: float = 0.05) -> ElasticModel:
    """Linear regression: the loss is quadratic in the weights."""
    inputs = L.Input((5,))
    model = ElasticModel(inputs, L.Dense(3, kernel_initializer="ones")(inputs))
    model.compile(tf.keras.optimizers.SGD(learning_rate), "mse")
    return model


def points(count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 5)), rng.normal(size=(count, 3))


def state(model: ElasticModel) -> list[np.ndarray]:
    """Everything that training changes, in the model, the optimizer, the metrics, the layers."""
    held = [*stack.variables_of(model), *optimizers.state(model.optimizer)]
    held += [variable for metric in model.metrics for variable in stack.variables_of(metric)]
    generators = [
        layer._random_generator for layer in model.layers if hasattr(layer, "_random_generator")
    ]
    held += [g._generator.state for g in generators if g._generator is not None]
    values = [variable.numpy() for variable in held]
    values += [np.array(str(g._seed)) for g in generators]
    return [*values, np.array(random.getstate()[1]), np.random.get_state()[1]]


def same(one: list[np.ndarray], two: list[np.ndarray]) -> bool:
    return len(one) == len(two) and all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(one, two)
    )


def test_nothing_is_left_behind() -> None:
    model = elastic("scaled")
    before = state(model)
    for reading in READINGS:
        importance.loss_decrease(model, *images(), gradient=reading, micro_batch_size=10)
        assert same(before, state(model)), reading


@pytest.fixture(scope="module")
def fitted() -> ElasticModel:
    model = noisy()
    model.fit(*images(), batch_size=8, verbose=0)
    return model


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_every_function_answers_per_tensor_and_leaves_nothing(function, fitted) -> None:
    before = state(fitted)
    values = function(fitted, *images())
    assert same(before, state(fitted))
    assert values.shape == (len(fitted.tensors),)
    assert values.dtype == np.float64
    assert np.isfinite(values).all()


def test_training_goes_on_as_without_an_evaluation() -> None:
    def train(evaluate: bool) -> list[np.ndarray]:
        tf.keras.utils.set_random_seed(7)
        model = noisy()
        model.fit(*images(), batch_size=8, verbose=0)  # the train function is there before
        if evaluate:
            importance.loss_decrease(model, *images(seed=1), gradient="after")
        model.fit(*images(), batch_size=8, verbose=0)
        return state(model)

    assert same(train(evaluate=True), train(evaluate=False))


def test_update_is_the_one_that_training_makes() -> None:
    model = elastic("sgdw")
    x, y = map(tf.convert_to_tensor, images())
    worth = importance.loss_decrease(model, x, y, gradient="before")
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    gradients = tape.gradient(loss, model.tensors)
    # The pass above has moved the statistics, which a training pass does not look at.
    old = [tensor.numpy() for tensor in model.tensors]
    model.train_on_batch(x, y)
    updates = [tensor.numpy() - before for tensor, before in zip(model.tensors, old)]
    expected = [-(g.numpy() * dw).sum() for g, dw in zip(gradients, updates)]
    np.testing.assert_allclose(worth, expected, rtol=1e-3, atol=1e-6)


def test_mean_of_before_and_after_is_the_true_decrease_of_a_quadratic_loss() -> None:
    model = linear()
    x, y = points()
    before, after = (
        importance.loss_decrease(model, x, y, gradient=reading).sum()
        for reading in ("before", "after")
    )
    start = model.evaluate(x, y, verbose=0)
    model.train_on_batch(x, y)
    decrease = start - model.evaluate(x, y, verbose=0)
    assert (before + after) / 2.0 == pytest.approx(decrease, rel=1e-5)
    assert after < decrease < before


def test_importance_is_the_decrease_to_first_order_tensor_by_tensor() -> None:
    x, y = points()
    model = linear(learning_rate=1e-3)
    worth = importance.loss_decrease(model, x, y, gradient="before")
    start = model.evaluate(x, y, verbose=0)
    for k, tensor in enumerate(model.tensors):
        value = tensor.numpy()
        model.set_mask(np.arange(len(worth)) == k)
        np.testing.assert_array_equal(
            importance.loss_decrease(model, x, y, gradient="before"), worth
        )  # whatever is trained now
        model.train_on_batch(x, y)
        assert worth[k] == pytest.approx(start - model.evaluate(x, y, verbose=0), rel=2e-2)
        tensor.assign(value)


def test_gradient_after_a_step_too_far_is_negative() -> None:
    model = linear(learning_rate=30.0)
    assert (importance.loss_decrease(model, *points(), gradient="after") < 0.0).all()
    assert (importance.loss_decrease(model, *points(), gradient="before") > 0.0).all()


def test_the_papers_own_way_takes_the_gradient_after_the_update() -> None:
    model, data = linear(), points()
    expected = importance.loss_decrease(model, *data, gradient="after")
    np.testing.assert_array_equal(importance.paper(model, *data, micro_batch_size=None), expected)
    assert importance.paper.strategy == "paper"


def test_the_other_half_judges_the_update() -> None:
    model = linear()
    x, y = points()
    x, y = tf.cast(x, tf.float32), tf.cast(y, tf.float32)
    gradients = []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x[half], y[half], model(x[half]))
        gradients.append(tape.gradient(loss, model.tensors))
    expected = [0.05 * tf.reduce_sum(a * b).numpy() for a, b in zip(*gradients)]
    worth = importance.loss_decrease(model, x, y, gradient="other")
    np.testing.assert_allclose(worth, expected, rtol=1e-4)


@pytest.mark.parametrize("gradient", READINGS)
def test_micro_batches_add_up(gradient: str) -> None:
    model = linear()
    whole = importance.loss_decrease(model, *points(), gradient=gradient)
    parts = importance.loss_decrease(model, *points(), gradient=gradient, micro_batch_size=5)
    np.testing.assert_allclose(parts, whole, rtol=1e-4)


def test_sample_weights_count() -> None:
    model = linear()
    x, y = points()
    weight = np.full(len(x), 2.0)
    for function, factor in ((importance.loss_decrease, 4.0), (importance.gradient_magnitude, 2.0)):
        double = function(model, x, y, sample_weight=weight)
        np.testing.assert_allclose(double, factor * function(model, x, y), rtol=1e-4)


def test_probe_of_one_sample_is_judged_by_itself() -> None:
    model = linear()
    x, y = points(1)
    worth = importance.loss_decrease(model, x, y, gradient="other")
    np.testing.assert_array_equal(worth, importance.loss_decrease(model, x, y, gradient="before"))


def test_tensor_that_the_loss_does_not_depend_on_is_worth_nothing() -> None:
    inputs = L.Input((5,))
    used, unused = L.Dense(3)(inputs), L.Dense(2, name="unused")(inputs)
    model = ElasticModel(inputs, {"used": used, "unused": unused})
    model.compile("sgd", {"used": "mse"})
    x, y = points()
    idle = np.array(["unused" in tensor.name for tensor in model.tensors])
    for reading in READINGS:
        worth = importance.loss_decrease(model, x, {"used": y}, gradient=reading)
        assert (worth[idle] == 0.0).all()
        assert (worth[~idle] != 0.0).all()
    assert (importance.gradient_magnitude(model, x, {"used": y})[idle] == 0.0).all()


def test_gradient_that_overflows_under_a_loss_scale_is_taken_with_a_smaller_one() -> None:
    with half_precision():
        model = ElasticModel.from_model(network())
        model.compile(tf.keras.optimizers.SGD(0.05), crossentropy())
        expected = importance.loss_decrease(model, *images())
        scale = stack.scale_of(model.optimizer)
        scale.assign(2.0**30)
        before = state(model)
        found = importance.loss_decrease(model, *images())
        assert same(before, state(model))
        assert float(scale) == 2.0**30
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.01 * np.abs(expected).max())


def test_inputs_may_be_a_structure_and_gradients_sparse() -> None:
    left = L.Input((4,), dtype="int32", name="left")
    inputs = {"left": left, "right": L.Input((12,), name="right")}
    words = L.Flatten()(L.Embedding(6, 3)(left))
    model = ElasticModel(inputs, L.Dense(1)(words + inputs["right"]))
    model.compile("adam", "mse")
    rng = np.random.default_rng(0)
    x = {"left": rng.integers(0, 6, (8, 4)), "right": rng.normal(size=(8, 12))}
    worth = importance.loss_decrease(model, x, np.ones((8, 1)), micro_batch_size=2)
    assert worth.shape == (3,)
    assert np.isfinite(worth).all()
    assert worth[0] != 0.0


def traces(model: ElasticModel) -> int:
    evaluator = Evaluator.of(model)
    functions = [evaluator._pass, evaluator._update]
    return sum(function.experimental_get_tracing_count() for function in functions)


def test_second_evaluation_traces_nothing_and_ever_new_shapes_do_not_pile_up() -> None:
    model = linear()
    x, y = points(24)
    importance.loss_decrease(model, x, y, micro_batch_size=4)
    count = traces(model)
    importance.loss_decrease(model, x, y, micro_batch_size=4)
    assert traces(model) == count
    for size in range(2, 24):
        importance.gradient_magnitude(model, x[:size], y[:size])
    assert traces(model) <= 10


def test_compiling_anew_takes_the_new_optimizer_and_frees_the_old_traces() -> None:
    model = linear(learning_rate=0.01)
    slow = importance.loss_decrease(model, *points(), gradient="before")
    batches = batches_of(as_probe(*points()), None)
    graph = weakref.ref(Evaluator.of(model)._pass.get_concrete_function(batches[0][1]).graph)
    model.compile(tf.keras.optimizers.SGD(0.02), "mse")
    fast = importance.loss_decrease(model, *points(), gradient="before")
    np.testing.assert_allclose(fast, 2.0 * slow, rtol=1e-4)
    gc.collect()
    assert graph() is None


def test_by_depth_scale_and_offset_of_normalisations_come_last() -> None:
    found = importance.depth(elastic(fitted=False))
    normal = ["bn1" in tensor.name or "bn2" in tensor.name for tensor in elastic().tensors]
    assert normal == [False, False, True, True, False, False, True, True, False, False]
    np.testing.assert_array_equal(found, [5, 6, 1, 2, 7, 8, 3, 4, 9, 10])


def test_model_is_saved_and_freed_with_its_evaluator(tmp_path) -> None:
    def saved() -> weakref.ref:
        model = linear()
        importance.loss_decrease(model, *points())
        model.save_weights(tmp_path / "model.weights.h5")
        model.export(tmp_path / "exported")
        return weakref.ref(model)

    gone = saved()  # AutoGraph looks at the local variables of whoever exports, which then stay
    tf.keras.backend.clear_session()
    gc.collect()
    assert gone() is None


def test_magnitude_is_that_of_the_weights() -> None:
    assert importance.weight_magnitude(linear())[0] == pytest.approx(15.0)


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

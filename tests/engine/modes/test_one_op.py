"""Layers that run in one op compute what Keras's own do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.train.engine import operations

pytestmark = pytest.mark.usefixtures("deterministic")
L = tf.keras.layers
ROUNDING = {"float32": 1e-5, "mixed_float16": 2e-3, "mixed_bfloat16": 2e-2}


def model_of(layer: tf.keras.layers.Layer, shape: tuple[int, ...]) -> et.ElasticModel:
    """An elastic model of one layer, whose weights are no defaults."""
    inputs = L.Input(shape[1:], dtype=layer.dtype_policy.compute_dtype)
    model = et.ElasticModel(inputs, layer(inputs))
    rng = np.random.default_rng(1)
    layer.set_weights([rng.uniform(0.5, 1.5, part.shape) for part in layer.get_weights()])
    return model


def results(
    model: et.ElasticModel, shape: tuple[int, ...], training: bool
) -> tuple[list[np.ndarray], list[str]]:
    """Outputs, gradients by inputs and by all tensors, then all weights; and the kinds of ops."""
    rng = np.random.default_rng(0)
    dtype = model.layers[-1].compute_dtype
    x = tf.cast(rng.normal(1.0, 2.0, shape), dtype)
    tensors, weights = stack.trainable(model), stack.weights(model)

    @tf.function
    def traced(x: tf.Tensor, upstream: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x, training=training)
            loss = tf.reduce_sum(tf.cast(y, upstream.dtype) * upstream)
        return [y, *tape.gradient(loss, [x, *tensors])]

    upstream = tf.cast(rng.normal(size=model.compute_output_shape(shape)), tf.float32)
    concrete = traced.get_concrete_function(x, upstream)
    found = [tf.cast(part, tf.float64).numpy() for part in concrete(x, upstream)]
    found += [tf.cast(weight, tf.float64).numpy() for weight in weights]
    return found, [op.type for op in concrete.graph.get_operations()]


def both(
    monkeypatch: Any, make: Any, shape: tuple[int, ...], training: bool = True
) -> tuple[list[np.ndarray], list[np.ndarray], list[str]]:
    """What a layer gives in one op, what Keras's own gives, and the kinds of ops of the former."""
    ours, kinds = results(model_of(make(), shape), shape, training)
    monkeypatch.setattr(operations, "IS_ON", False)
    return ours, results(model_of(make(), shape), shape, training)[0], kinds


SHAPES = [(8, 5, 4, 3), (2, 1, 1, 7), (1, 6, 3, 1), (4, 9, 9, 16)]
OPTIONS = [{}, {"scale": False}, {"center": False}, {"epsilon": 1e-4, "momentum": 0.5, "axis": 3}]


@pytest.mark.parametrize("kind", ["batch", "stored", "frozen"])
@pytest.mark.parametrize("seed", range(3))
def test_a_normalisation_and_its_gradients_are_those_of_keras(monkeypatch, kind, seed):
    rng = np.random.default_rng(seed)
    policy, shape = [*ROUNDING][seed], SHAPES[rng.integers(4)]
    options = {"dtype": policy, "trainable": kind != "frozen", **OPTIONS[rng.integers(4)]}
    ours, theirs, kinds = both(
        monkeypatch, lambda: L.BatchNormalization(**options), shape, kind != "stored"
    )
    assert "FusedBatchNormV3" in kinds
    for one, other in zip(ours, theirs):
        tolerance = ROUNDING[policy] * max(np.abs(other).max(), 1.0)
        np.testing.assert_allclose(one, other, rtol=0.0, atol=tolerance)


class Masked(L.Layer):
    """A normalisation that leaves some pixels out."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = L.BatchNormalization()

    def build(self, shape: Any) -> None:
        self.inside.build(shape)
        self.built = True

    def call(self, inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
        mask = inputs[..., 0] > 0.0
        return self.inside(inputs, training=training, mask=mask)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


OTHERS = {
    "mask": Masked,
    "axis": lambda: L.BatchNormalization(1),
    "small epsilon": lambda: L.BatchNormalization(epsilon=1e-6),
    "synchronised": lambda: L.BatchNormalization(synchronized=True),
    "renormalised": lambda: L.BatchNormalization(renorm=True),
    "double": lambda: L.BatchNormalization(dtype="float64"),
}


@pytest.mark.filterwarnings("ignore:Masking is not supported")  # by Keras 2
@pytest.mark.parametrize("kind", OTHERS)
def test_normalisations_that_the_op_cannot_do_are_left_to_keras(monkeypatch, kind):
    ours, theirs, _ = both(monkeypatch, OTHERS[kind], (4, 6, 6, 3))
    for one, other in zip(ours, theirs):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strides": 2, "padding": "same"},
        {"dilation_rate": 2},
        {"dtype": "mixed_bfloat16"},
        {"dtype": "float64"},
    ],
    ids=str,
)
def test_a_convolution_of_groups_runs_in_one_op(monkeypatch, options):
    ours, theirs, kinds = both(
        monkeypatch, lambda: L.Conv2D(12, 3, groups=4, activation="relu", **options), (4, 9, 9, 8)
    )
    is_one = "Conv2D" in kinds and not [kind for kind in kinds if "Call" in kind]
    assert is_one == stack.convolves_groups(L.Conv2D(12, 3, **options).compute_dtype)
    for one, other in zip(ours, theirs):
        # XLA rounds to bfloat16 less often
        tolerance = 5e-2 if "dtype" in options else 1e-5
        np.testing.assert_allclose(one, other, rtol=0.0, atol=tolerance * np.abs(other).max())


def test_all_calls_of_a_model_run_them_and_leave_nothing():
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((6, 6, 3))
    x = L.BatchNormalization()(L.Conv2D(6, 3, groups=3)(inputs))
    x = L.Dense(2)(L.GlobalAveragePooling2D()(L.ReLU()(x)))
    model = et.ElasticModel.from_model(tf.keras.Model(inputs, x))
    model.compile("sgd", "mse", metrics=["mae"])
    before = [{**vars(layer)} for layer in model.layers]
    x, y = np.ones((4, 6, 6, 3), np.float32), np.zeros((4, 2), np.float32)
    model.fit(x, y, verbose=0)
    seen = [model.evaluate(x, y, verbose=0)[1], np.abs(model.predict(x, verbose=0)).mean()]
    np.testing.assert_allclose(*seen, rtol=1e-5)
    for layer, known in zip(model.layers, before):
        assert {"call", "convolution_op", "_jit_compiled_convolution_op"}.isdisjoint(vars(layer))
        assert vars(layer).keys() == known.keys()
    graph = tf.function(lambda: model(x, training=False)).get_concrete_function().graph
    kinds = {op.type for op in graph.get_operations()}
    assert "FusedBatchNormV3" in kinds
    if stack.convolves_groups():
        assert "Conv2D" in kinds and "PartitionedCall" not in kinds

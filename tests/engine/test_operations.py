"""Layers that run in one op compute what Keras's own do."""

import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.train.engine import operations

pytestmark = pytest.mark.usefixtures("deterministic")
L = tf.keras.layers
ROUNDING = {"float32": 1e-5, "mixed_float16": 2e-3, "mixed_bfloat16": 2e-2}


def results(layer, shape, training) -> tuple[list[np.ndarray], list[str]]:
    """Outputs, gradients by inputs and by all tensors, then all weights; and the kinds of ops."""
    inputs = L.Input(shape[1:], dtype=layer.dtype_policy.compute_dtype)
    model, weights = et.ElasticModel(inputs, layer(inputs)), np.random.default_rng(1)
    layer.set_weights([weights.uniform(0.5, 1.5, part.shape) for part in layer.get_weights()])
    rng = np.random.default_rng(0)
    x = tf.cast(rng.normal(1.0, 2.0, shape), layer.compute_dtype)
    upstream = tf.cast(rng.normal(size=model.compute_output_shape(shape)), tf.float32)

    @tf.function
    def traced(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x, training=training)
            loss = tf.reduce_sum(tf.cast(y, tf.float32) * upstream)
        return [y, *tape.gradient(loss, [x, *stack.trainable(model)])]

    concrete = traced.get_concrete_function(x)
    found = [*concrete(x), *stack.weights(model)]
    kinds = [op.type for op in concrete.graph.get_operations()]
    return [tf.cast(part, tf.float64).numpy() for part in found], kinds


def assert_as_keras(monkeypatch, make, shape, rounding, training=True, least=0.0) -> list[str]:
    """A layer gives in one op what Keras's own gives; the kinds of ops of the former."""
    ours, kinds = results(make(), shape, training)
    monkeypatch.setattr(operations, "IS_ON", False)
    for one, other in zip(ours, results(make(), shape, training)[0], strict=True):
        atol = rounding * max(np.abs(other).max(), least)
        np.testing.assert_allclose(one, other, rtol=0.0, atol=atol)
    return kinds


SHAPES = [(8, 5, 4, 3), (2, 1, 1, 7), (1, 6, 3, 1), (4, 9, 9, 16)]
OPTIONS = [{}, {"scale": False}, {"center": False}, {"epsilon": 1e-4, "momentum": 0.5, "axis": 3}]


@pytest.mark.parametrize("kind", ["batch", "stored", "frozen"])
@pytest.mark.parametrize("seed", range(3))
def test_a_normalisation_and_its_gradients_are_those_of_keras(monkeypatch, kind, seed):
    rng = np.random.default_rng(seed)
    policy, shape = [*ROUNDING][seed], SHAPES[rng.integers(4)]
    options = {"dtype": policy, "trainable": kind != "frozen", **OPTIONS[rng.integers(4)]}

    def make():
        return L.BatchNormalization(**options)

    kinds = assert_as_keras(monkeypatch, make, shape, ROUNDING[policy], kind != "stored", 1.0)
    assert "FusedBatchNormV3" in kinds


class Masked(L.Layer):
    """A normalisation that leaves some pixels out."""

    def __init__(self):
        super().__init__()
        self.inside = L.BatchNormalization()

    def build(self, shape):
        self.inside.build(shape)
        self.built = True

    def call(self, inputs, training=None):
        return self.inside(inputs, training=training, mask=inputs[..., 0] > 0.0)

    def compute_output_shape(self, shape):
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
    assert_as_keras(monkeypatch, OTHERS[kind], (4, 6, 6, 3), 0.0)


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
    def make():
        return L.Conv2D(12, 3, groups=4, activation="relu", **options)

    rounding = 5e-2 if "dtype" in options else 1e-5  # XLA rounds to bfloat16 less often
    kinds = assert_as_keras(monkeypatch, make, (4, 9, 9, 8), rounding)
    is_one = "Conv2D" in kinds and not [kind for kind in kinds if "Call" in kind]
    assert is_one == stack.convolves_groups(make().compute_dtype)


def test_all_calls_of_a_model_run_them_and_leave_nothing():
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((6, 6, 3))
    x = L.BatchNormalization()(L.Conv2D(6, 3, groups=3)(inputs))
    x = L.Dense(2)(L.GlobalAveragePooling2D()(L.ReLU()(x)))
    model = et.ElasticModel.from_model(tf.keras.Model(inputs, x))
    model.compile("sgd", "mse", metrics=["mae"])
    before = [{*vars(layer)} for layer in model.layers]
    x, y = np.ones((4, 6, 6, 3), np.float32), np.zeros((4, 2), np.float32)
    model.fit(x, y, verbose=0)
    seen = [model.evaluate(x, y, verbose=0)[1], np.abs(model.predict(x, verbose=0)).mean()]
    np.testing.assert_allclose(*seen, rtol=1e-5)
    assert [{*vars(layer)} for layer in model.layers] == before
    graph = tf.function(lambda: model(x, training=False)).get_concrete_function().graph
    kinds = {op.type for op in graph.get_operations()}
    assert "FusedBatchNormV3" in kinds
    if stack.convolves_groups():
        assert "Conv2D" in kinds and "PartitionedCall" not in kinds

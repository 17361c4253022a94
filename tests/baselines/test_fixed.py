import numpy as np
import tensorflow as tf
from networks import CLASSES, L, network

from elastic_tf.methods.baselines import bias_tensors, bn_bias_tensors
from elastic_tf.model import ElasticModel


def tensors(model: tf.keras.Model, find) -> set[str]:
    """Names of the tensors that `find` says True of; the models here have no name twice."""
    model = ElasticModel.from_model(model)
    # Keras 3 puts the name of a sequential model before those of its layers
    names = [tensor.name.removeprefix(f"{model.name}/") for tensor in model.tensors]
    return {name for name, on in zip(names, find(model)) if on}


def sequential(*layers) -> tf.keras.Model:
    return tf.keras.Sequential([*layers, L.Dense(CLASSES, name="head")])


class Shifted(L.Layer):
    """Has a kernel by the name of a bias and a bias by the name of a kernel."""

    def build(self, shape):
        self.kernel = self.add_weight(name="bias", shape=(shape[-1], 4))
        self.bias = self.add_weight(name="kernel", shape=(4,))
        self.query_bias = self.add_weight(name="query", shape=(4,))
        self.gamma = self.add_weight(name="gamma", shape=(4,))

    def call(self, inputs):
        return self.gamma * (inputs @ self.kernel + self.bias + self.query_bias)


class TwoBranches(tf.keras.Model):
    """A subclassed model with a model inside."""

    def __init__(self):
        super().__init__()
        self.inner = network()
        self.norm = L.LayerNormalization(name="norm")
        self.head = L.Dense(2, name="last")

    def call(self, inputs):
        return self.head(self.norm(self.inner(inputs)))


def test_bn_bias_is_head_biases_and_normalisation():
    assert tensors(network(), bn_bias_tensors) == {
        *("conv1/bias:0", "bn1/gamma:0", "bn1/beta:0", "conv2/bias:0", "bn2/gamma:0"),
        *("bn2/beta:0", "head/kernel:0", "head/bias:0"),
    }


def test_roles_do_not_go_by_the_names_of_tensors():
    model = sequential(L.Input((3,)), Shifted(name="odd"))
    assert tensors(model, bias_tensors) == {"odd/kernel:0", "odd/query:0", "head/bias:0"}
    # a gamma without a beta beside it scales, but does not normalise
    assert "odd/gamma:0" not in tensors(model, bn_bias_tensors)


def test_biases_of_recurrent_cells_are_found():
    model = sequential(
        L.Input((5, 2)),
        L.Bidirectional(L.LSTM(3, return_sequences=True), name="both"),
        L.GRU(3, name="gru"),
    )
    biases = tensors(model, bias_tensors)
    assert sum(name.startswith("both/forward") for name in biases) == 1
    assert sum(name.startswith("both/backward") for name in biases) == 1
    assert sum(name.startswith("gru") for name in biases) == 1
    assert len(biases) == 4


def test_biases_of_attention_are_found():
    inputs = L.Input((5, 4))
    x = L.MultiHeadAttention(2, 2, name="attention")(inputs, inputs)
    model = tf.keras.Model(inputs, L.Dense(2, name="head")(L.LayerNormalization(name="norm")(x)))
    biases = tensors(model, bias_tensors)
    assert biases == {
        *(f"attention/{part}/bias:0" for part in ("query", "key", "value", "attention_output")),
        *("norm/beta:0", "head/bias:0"),
    }
    assert tensors(model, bn_bias_tensors) - biases == {"norm/gamma:0", "head/kernel:0"}


def test_normalisation_is_found_whatever_it_scales():
    model = sequential(
        L.Input((4, 4, 4)),
        L.GroupNormalization(2, name="group"),
        L.BatchNormalization(scale=False, name="shifts"),
        L.LayerNormalization(center=False, name="scales"),
        L.SeparableConv2D(4, 1, name="separable"),
        L.PReLU(name="prelu"),
        L.Flatten(),
    )
    assert tensors(model, bn_bias_tensors) == {
        *("group/beta:0", "shifts/beta:0", "separable/bias:0", "head/bias:0"),
        *("group/gamma:0", "scales/gamma:0", "head/kernel:0"),
    }


def test_roles_are_found_in_models_within_models():
    model = TwoBranches()
    model(np.zeros((1, *model.inner.input_shape[1:]), np.float32))
    chosen = ElasticModel.from_model(model)
    left = [t.name for t, on in zip(chosen.tensors, bn_bias_tensors(chosen)) if not on]
    assert sorted(name.rsplit("/", 2)[-2] for name in left) == ["conv1", "conv2", "head"]
    assert all(name.endswith("kernel:0") for name in left)

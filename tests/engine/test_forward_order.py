from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import L, network

from elastic_tf import stack
from elastic_tf.train.engine.tracing import forward_order


def names(variables: list[tf.Variable]) -> list[str]:
    return [variable.name.split(":")[0] for variable in variables]


def test_forward_order_is_that_of_use_not_of_creation():
    class Crossed(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.second = L.Dense(2, name="second")
            self.first = L.Dense(3, name="first")

        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return self.second(self.first(inputs))

    model = Crossed()
    model(np.zeros((1, 4), np.float32))
    order = names(forward_order(model))
    assert [name.split("/")[-2:] for name in order] == [
        ["first", "kernel"],
        ["first", "bias"],
        ["second", "kernel"],
        ["second", "bias"],
    ]


def test_forward_order_puts_a_shared_layer_at_its_first_use():
    inputs = L.Input((4,))
    shared = L.Dense(4, name="shared")
    x = shared(inputs)
    x = L.Dense(4, name="between")(x)
    model = tf.keras.Model(inputs, shared(x))
    assert names(forward_order(model))[:2] == ["shared/kernel", "shared/bias"]


def test_forward_order_holds_every_trainable_variable_once():
    model = network()
    order = forward_order(model)
    assert sorted(map(id, order)) == sorted(map(id, stack.trainable(model)))


def test_forward_order_leaves_the_seeds_of_the_layers_alone():
    layer = L.Dropout(0.5, seed=3)
    model = tf.keras.Sequential([L.Input((4,)), L.Dense(4), layer, L.Dense(2)])
    same = tf.keras.Sequential([L.Input((4,)), L.Dense(4), L.Dropout(0.5, seed=3), L.Dense(2)])
    same.set_weights(model.get_weights())
    forward_order(model)

    def drawn(one: tf.keras.Model) -> np.ndarray:
        tf.keras.utils.set_random_seed(0)
        return one(np.ones((2, 4), np.float32), training=True)

    np.testing.assert_array_equal(drawn(model), drawn(same))


def test_forward_order_puts_unused_tensors_last():
    class Idle(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.idle = self.add_weight(name="idle", shape=(2,))
            self.dense = L.Dense(2)

        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return self.dense(inputs)

    model = Idle()
    model(np.zeros((1, 4), np.float32))
    assert names(forward_order(model))[-1].split("/")[-1] == "idle"


def test_forward_order_raises_when_nothing_is_trainable_or_built():
    model = tf.keras.Sequential([L.Input((3,)), L.Dense(2)], name="frozen")
    model.trainable = False
    with pytest.raises(ValueError, match="'frozen' with 2 weights, none trainable"):
        forward_order(model)
    with pytest.raises(ValueError, match="never seen an input"):
        forward_order(tf.keras.Sequential([L.Dense(2)], name="unbuilt"))

"""The order of the tensors, by their first use in a traced pass."""

import numpy as np
import pytest
import tensorflow as tf
from networks import L, network

from elastic_tf import stack
from elastic_tf.train.engine.tracing import forward_order


class Crossed(tf.keras.Model):
    """The layer that is used first is made last, and one weight is not used."""

    def __init__(self):
        super().__init__()
        self.idle = self.add_weight(name="idle", shape=(2,))
        self.second = L.Dense(2, name="second")
        self.first = L.Dense(3, name="first")

    def call(self, inputs):
        return self.second(self.first(inputs))


def test_forward_order_is_that_of_use_not_of_creation_with_unused_tensors_last():
    model = Crossed()
    model(np.zeros((1, 4), np.float32))
    names = [v.name.split(":")[0].split("/")[-2:] for v in forward_order(model)]
    layers = [[layer, part] for layer in ("first", "second") for part in ("kernel", "bias")]
    assert names[:-1] == layers and names[-1][-1] == "idle"


def test_forward_order_puts_a_shared_layer_at_its_first_use():
    inputs, shared = L.Input((4,)), L.Dense(4, name="shared")
    model = tf.keras.Model(inputs, shared(L.Dense(4, name="between")(shared(inputs))))
    names = [variable.name.split(":")[0] for variable in forward_order(model)]
    assert names[:2] == ["shared/kernel", "shared/bias"]


def test_forward_order_holds_every_trainable_variable_once():
    model = network()
    assert sorted(map(id, forward_order(model))) == sorted(map(id, stack.trainable(model)))


def test_forward_order_leaves_the_seeds_of_the_layers_alone():
    drawn, weights = [], None
    for looks in (True, False):
        model = tf.keras.Sequential([L.Input((4,)), L.Dense(4), L.Dropout(0.5, seed=3), L.Dense(2)])
        weights = weights or model.get_weights()
        model.set_weights(weights)
        if looks:
            forward_order(model)
        tf.keras.utils.set_random_seed(0)
        drawn.append(model(np.ones((2, 4), np.float32), training=True))
    np.testing.assert_array_equal(*drawn)


def test_forward_order_raises_when_nothing_is_trainable_or_built():
    model = tf.keras.Sequential([L.Input((3,)), L.Dense(2)], name="frozen")
    model.trainable = False
    with pytest.raises(ValueError, match="'frozen' with 2 weights, none trainable"):
        forward_order(model)
    with pytest.raises(ValueError, match="never seen an input"):
        forward_order(tf.keras.Sequential([L.Dense(2)], name="unbuilt"))

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import OPTIMIZERS, crossentropy, images, mask_of, network, step_flops

from elastic_tf.model import ElasticModel

L = tf.keras.layers
X, Y = images()[0][:8], images()[1][:8]


def compiled(model, optimizer="sgd", loss=None, **options):
    elastic = ElasticModel.from_model(model)
    elastic.compile(OPTIMIZERS[optimizer](), loss or crossentropy(), **options)
    return elastic


def stack():
    """Dense 5 -> 4 -> 3 without biases, sum of the results as loss."""
    layers = [L.Input((5,)), L.Dense(4, use_bias=False, name="a")]
    model = tf.keras.Sequential([*layers, L.Dense(3, use_bias=False, name="b")])
    return compiled(model, loss=lambda y, y_pred: tf.reduce_sum(y_pred, axis=-1))


BATCH = np.ones((2, 5), np.float32), np.zeros(2)


# forward: 2 * 4 results of 5 multiply-adds, 2 * 3 of 4; as much for both kernels' gradients, and
# 48 again for what the first layer gave
PRODUCTS = (80 + 48) + (80 + 48) + 48


def test_dense_layers_are_counted_as_by_hand():
    # the loss of 6 results, its mean and their gradient take less than the smallest product twice;
    # v = momentum * v - rate * g; w += v: 4 for each of 32 weights, and a sign in Keras
    found = step_flops(stack(), *BATCH) - PRODUCTS
    assert 6 + 4 * 32 <= found < 2 * 48 + 5 * 32


def test_a_frozen_prefix_costs_no_backward_operations():
    model = stack()
    spared = step_flops(model, *BATCH) - step_flops(model, *BATCH, mask=mask_of(model, "b"))
    assert 80 + 48 + 4 * 20 <= spared <= 80 + 48 + 5 * 20


@pytest.mark.parametrize("optimizer", ["adam", "sgdw"])
def test_operations_grow_with_the_tensors_trained(optimizer):
    model = compiled(network(), optimizer)
    nothing = step_flops(model, X, Y, mask=np.zeros(len(model.tensors), bool))
    # conv1: results 8 * 4 * 4 * 3 = 384 of 3 * 3 * 2 multiply-adds; conv2: 128 of 3 * 3 * 3
    assert nothing > 384 * 18 * 2 + 128 * 27 * 2
    assert nothing < step_flops(model, X, Y, mask=mask_of(model, "head")) < step_flops(model, X, Y)


def test_functions_called_are_counted_where_they_are_called():
    class Plain(L.Layer):
        def call(self, x):
            return tf.nn.relu(x) * 2.0

    class Called(Plain):
        call = tf.function(Plain.call)

    def counted(layer):
        inputs = L.Input((5,), batch_size=2)  # the function is traced for what it is first given
        x = layer(L.Dense(4, use_bias=False)(inputs))
        return step_flops(compiled(tf.keras.Model(inputs, L.Dense(3)(x))), *BATCH)

    assert counted(Called()) == counted(Plain())

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import OPTIMIZERS, crossentropy, images, mask_of, network, values

from elastic_tf.costs.flops import step_flops
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


def test_dense_layers_are_split_as_by_hand():
    flops = step_flops(stack(), *BATCH)
    # forward: 2 * 4 results of 5 multiply-adds, 2 * 3 of 4;
    # backward: the same for both kernels, and again for what the first layer gave
    assert flops.by_op["MatMul"] == (80 + 48) + (80 + 48) + 48
    # the loss of 6 results and its mean take less than the smallest of these products
    assert 6 <= flops.forward - (80 + 48) < 48
    assert 0 <= flops.backward - (80 + 48 + 48) < 48
    # v = momentum * v - rate * g; w += v: 4 for each of 32 weights, and a sign in Keras
    assert 4 * 32 <= flops.update <= 5 * 32 + 2  # and two counters
    assert flops.total == flops.forward + flops.backward + flops.update
    assert flops.uncounted == {}


def test_a_frozen_prefix_costs_no_backward_operations():
    model = stack()
    flops = step_flops(model, *BATCH, mask=mask_of(model, "b"))
    assert flops.by_op["MatMul"] == (80 + 48) + 48
    model = compiled(network())
    head = step_flops(model, X, Y, mask=mask_of(model, "head"))
    assert not any("Backprop" in op or "BatchNormGrad" in op for op in head.by_op)


def test_a_tensor_on_the_way_costs_its_input_gradient_alone():
    model = compiled(network())
    full = step_flops(model, X, Y).by_op
    first = step_flops(model, X, Y, mask=mask_of(model, "conv1")).by_op
    # conv2: results 8 * 2 * 2 * 4 = 128, each of 3 * 3 * 3 = 27 multiply-adds
    assert full["Conv2DBackpropInput"] == first["Conv2DBackpropInput"] == 128 * 27 * 2
    assert full["Conv2DBackpropFilter"] - first["Conv2DBackpropFilter"] == 128 * 27 * 2


def test_nothing_trained_is_the_forward_pass():
    model = compiled(network())
    flops = step_flops(model, X, Y, mask=np.zeros(len(model.tensors), bool))
    # conv1: results 8 * 4 * 4 * 3 = 384 of 3 * 3 * 2 multiply-adds; conv2 as above
    assert flops.by_op["Conv2D"] == 384 * 18 * 2 + 128 * 27 * 2
    assert flops.forward > 0 == flops.backward
    assert flops.update <= 2  # counters of metrics


@pytest.mark.parametrize("optimizer", ["adam", "sgdw"])
def test_update_grows_with_the_weights_trained(optimizer):
    model = compiled(network(), optimizer)
    full = step_flops(model, X, Y)
    head = step_flops(model, X, Y, mask=mask_of(model, "head"))
    assert head.update < full.update
    assert full.uncounted == {}


def test_functions_called_are_counted_where_they_are_called():
    class Called(L.Layer):
        @tf.function
        def call(self, x):
            return tf.nn.relu(x) * 2.0

    inputs = L.Input((5,), batch_size=2)  # the function is traced for what it is first given
    x = Called()(L.Dense(4, use_bias=False)(inputs))
    flops = step_flops(compiled(tf.keras.Model(inputs, L.Dense(3)(x))), *BATCH)
    assert flops.by_op["ReluGrad"] == flops.by_op["Relu"] == 8
    assert flops.uncounted == {}


def test_a_loop_is_named_as_uncounted():
    inputs = L.Input((5, 2))
    model = tf.keras.Model(inputs, L.Dense(3)(L.RNN(L.SimpleRNNCell(2))(inputs)))
    flops = step_flops(compiled(model), np.ones((2, 5, 2), np.float32), BATCH[1])
    loops = sum(count for op, count in flops.uncounted.items() if op.endswith("While"))
    assert loops >= 2  # forward and backward


def test_step_flops_leaves_nothing_behind():
    model = compiled(network(), "adam", metrics=["accuracy"], jit_compile=True)
    step_flops(model, X, Y)
    before, state = values(model.variables), np.random.get_state()[1].tobytes()
    step_flops(model, X, Y)
    assert values(model.variables) == before
    assert np.random.get_state()[1].tobytes() == state


def test_step_flops_refuses_a_mask_of_another_length():
    with pytest.raises(ValueError, match=r"shape \(2,\). Received: bool of shape \(3,\)"):
        step_flops(stack(), *BATCH, mask=np.ones(3, bool))

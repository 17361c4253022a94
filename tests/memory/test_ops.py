"""Operations of single ops and of steps, counted by hand: one multiply-add is 2."""

import numpy as np
import pytest
import tensorflow as tf
from networks import OPTIMIZERS, L, crossentropy, images, mask_of, network, step_flops

from elastic_tf.memory.ops import op_flops
from elastic_tf.model import ElasticModel

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

    def operations(layer):
        inputs = L.Input((5,), batch_size=2)  # the function is traced for what it is first given
        x = layer(L.Dense(4, use_bias=False)(inputs))
        return step_flops(compiled(tf.keras.Model(inputs, L.Dense(3)(x))), *BATCH)

    assert operations(Called()) == operations(Plain())


def counted(run, *shapes):
    """Operations of all ops of a traced function by type, those without any left out."""
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    ops = tf.function(run).get_concrete_function(*specs).graph.get_operations()
    found = {op.type: op_flops(op) for op in ops}
    return {kind: operations for kind, operations in found.items() if operations != 0}


def gradients(run):
    """`run` and its gradients for both arguments."""

    def both(a, b):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            result = run(a, b)
        return tape.gradient(result, [a, b])

    return both


def convolution(x, kernel):
    return tf.nn.conv2d(x, kernel, strides=2, padding="SAME")


def test_both_gradients_of_a_convolution_take_what_it_takes():
    found = counted(gradients(convolution), (2, 8, 8, 3), (3, 3, 3, 5))
    assert found["Conv2DBackpropInput"] == found["Conv2DBackpropFilter"] == 8640


def test_depthwise_convolution_and_its_gradients():
    def depthwise(x, kernel):
        return tf.nn.depthwise_conv2d(x, kernel, strides=[1, 1, 1, 1], padding="SAME")

    # results 2 * 4 * 4 * (3 * 2) = 192, each of 3 * 3 = 9 multiply-adds
    found = counted(gradients(depthwise), (2, 4, 4, 3), (3, 3, 3, 2))
    assert found["DepthwiseConv2dNative"] == 3456
    assert found["DepthwiseConv2dNativeBackpropInput"] == 3456
    assert found["DepthwiseConv2dNativeBackpropFilter"] == 3456


@pytest.mark.parametrize(
    ("run", "shapes", "found"),
    [
        # results 2 * 4 * 4 * 5 = 160, each of 3 * 3 * 3 = 27 multiply-adds
        (convolution, [(2, 8, 8, 3), (3, 3, 3, 5)], {"Conv2D": 160 * 27 * 2}),
        # results 4 * 3, each of 5 multiply-adds
        (tf.matmul, [(4, 5), (5, 3)], {"MatMul": 120}),
        (lambda a, b: tf.matmul(a, b, transpose_a=True), [(5, 4), (5, 3)], {"MatMul": 120}),
        # results 2 * 7 * 4 * 3
        (tf.matmul, [(2, 7, 4, 5), (2, 7, 5, 3)], {"BatchMatMulV2": 1680}),
        # elementwise ops count results, reductions inputs, pooling its 12 windows of 4
        (lambda x, y: tf.nn.relu(x + y), [(4, 5), (5,)], {"AddV2": 20, "Relu": 20}),
        (tf.reduce_sum, [(4, 5)], {"Sum": 20}),
        (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), [(1, 4, 4, 3)], {"MaxPool": 48}),
        (tf.nn.relu, [(None, 3)], {}),
    ],
    ids="convolution product transposed batches elementwise sum pooling unknown_shape".split(),
)
def test_ops_are_counted_as_by_hand(run, shapes, found):
    assert counted(run, *shapes) == found


@pytest.mark.parametrize(
    ("equation", "shapes", "operations"),
    [
        ("abc,cd->abd", [(2, 3, 4), (4, 5)], 2 * 2 * 3 * 5 * 4),
        ("...c,cd->...d", [(2, 3, 4), (4, 5)], 2 * 2 * 3 * 5 * 4),
        ("ab,ab->ab", [(2, 3), (2, 3)], 6),  # products without a sum
        ("abc->c", [(2, 3, 4)], 24),  # a sum without products
        ("ab->ba", [(2, 3)], None),  # a transposition
    ],
)
def test_einsum(equation, shapes, operations):
    found = counted(lambda *given: tf.raw_ops.Einsum(inputs=given, equation=equation), *shapes)
    assert found.get("Einsum") == operations


@pytest.mark.parametrize(("is_training", "operations"), [(False, 2 * 96), (True, 8 * 96)])
def test_batch_normalisation(is_training, operations):
    def normalised(x, per_channel):
        p = per_channel
        return tf.compat.v1.nn.fused_batch_norm(x, p, p, p, p, is_training=is_training)[0]

    assert counted(normalised, (2, 4, 4, 3), (3,))["FusedBatchNormV3"] == operations

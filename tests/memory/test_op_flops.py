"""Operations of single ops, counted by hand: one multiply-add is 2."""

from __future__ import annotations

import pytest
import tensorflow as tf

from elastic_tf.memory import op_flops


def counted(run, *shapes):
    """Operations of all ops of a traced function by type, those without any left out."""
    specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
    ops = tf.function(run).get_concrete_function(*specs).graph.get_operations()
    found = {op.type: op_flops.count(op) for op in ops}
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


def test_convolution():
    # results 2 * 4 * 4 * 5 = 160, each of 3 * 3 * 3 = 27 multiply-adds
    assert counted(convolution, (2, 8, 8, 3), (3, 3, 3, 5)) == {"Conv2D": 160 * 27 * 2}


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


@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_product(transposed):
    # results 4 * 3, each of 5 multiply-adds
    shape = (5, 4) if transposed else (4, 5)
    found = counted(lambda a, b: tf.matmul(a, b, transpose_a=transposed), shape, (5, 3))
    assert found == {"MatMul": 120}


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


def test_elementwise_ops_count_results_and_reductions_inputs():
    found = counted(lambda x, bias: tf.reduce_sum(tf.nn.relu(x + bias)), (4, 5), (5,))
    assert found == {"AddV2": 20, "Relu": 20, "Sum": 20}


def test_pooling_counts_its_windows():
    # results 2 * 2 * 3 = 12, windows of 4
    assert counted(lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), (1, 4, 4, 3)) == {"MaxPool": 48}


@pytest.mark.parametrize(("is_training", "operations"), [(False, 2 * 96), (True, 8 * 96)])
def test_batch_normalisation(is_training, operations):
    def normalised(x, per_channel):
        p = per_channel
        return tf.compat.v1.nn.fused_batch_norm(x, p, p, p, p, is_training=is_training)[0]

    assert counted(normalised, (2, 4, 4, 3), (3,))["FusedBatchNormV3"] == operations


def test_an_op_of_unknown_shape_is_not_counted():
    assert counted(tf.nn.relu, (None, 3)) == {"Relu": None}


def test_product_of_batches_of_matrices():
    # results 2 * 7 * 4 * 3, each of 5 multiply-adds
    found = counted(tf.matmul, (2, 7, 4, 5), (2, 7, 5, 3))
    assert found == {"BatchMatMulV2": 1680}

"""The frozen prefix: a step that takes cached activations trains as one that takes the inputs."""

import numpy as np
import pytest
import tensorflow as tf
from small_networks import BATCH, SAMPLES, chain, elastic, with_dropout

from elastic_tf.cut import find_cut
from elastic_tf.train.engine import freezing
from elastic_tf.train.engine.prefix import step_behind

pytestmark = pytest.mark.usefixtures("deterministic")


def random_first():
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Input((8,)), layers.Dropout(0.5), layers.Dense(3)])


def kinds_of(model, variables):
    """What tells the cut of a forward pass."""
    kinds = []

    @tf.function(input_signature=[tf.TensorSpec((SAMPLES, 8))])
    def run(x):
        with freezing.frozen(freezing.left_out(model, variables)):
            y_pred = model(x, training=True)
        cut = find_cut(tf.compat.v1.get_default_graph(), [x], [y_pred, *model.losses], variables)
        kinds.extend(cut.kinds)

    run.get_concrete_function()
    return kinds


def test_cut_is_the_last_result_before_what_is_trained():
    model = elastic(chain)
    assert kinds_of(model, model.tensors[-2:]) == [("Relu", tf.float32, [6])]


def test_nothing_is_cached_when_the_first_tensor_is_trained():
    model = elastic(chain)
    assert kinds_of(model, model.tensors) == []


def test_nothing_is_cached_where_only_the_inputs_could_be():
    assert kinds_of(elastic(with_dropout), ()) and not kinds_of(elastic(random_first), ())


def test_cut_lies_before_what_is_drawn_at_random():
    model = elastic(with_dropout)
    # scaled, and then dropped
    assert kinds_of(model, model.tensors[-2:]) == [("Mul", tf.float32, [6])]


def test_prefix_is_not_in_the_executed_step():
    model = elastic(chain)
    variables = model.tensors[-2:]
    model.set_mask(np.arange(len(model.tensors)) >= len(model.tensors) - 2)
    kinds = kinds_of(model, variables)

    @tf.function
    def step(held, y):
        batch = (tf.zeros((BATCH, 8)), y)
        return step_behind(model.train_step, batch, variables, kinds, [held])

    specs = tf.TensorSpec((BATCH, 6)), tf.TensorSpec((BATCH,), tf.int64)
    concrete = step.get_concrete_function(*specs)
    needed = tf.compat.v1.graph_util.extract_sub_graph(
        concrete.graph.as_graph_def(),
        [t.op.name for t in tf.nest.flatten(concrete.structured_outputs)],
    )
    # the head's own and its weight gradient
    assert sum(node.op == "MatMul" for node in needed.node) == 2

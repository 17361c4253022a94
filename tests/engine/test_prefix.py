"""The frozen prefix: a step that takes cached activations trains as one that takes the inputs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from small_networks import (
    BATCH,
    SAMPLES,
    chain,
    data,
    elastic,
    nested,
    regularised,
    residual,
    skips_to_the_head,
    subclassed,
    with_dropout,
)

from elastic_tf import stack
from elastic_tf.engine import freezing
from elastic_tf.engine.prefix import find_cut, hand_over

IS_KERAS_2 = stack.KERAS_VERSION.startswith("2.")
pytestmark = pytest.mark.usefixtures("deterministic")


def random_first():
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Input((8,)), layers.Dropout(0.5), layers.Dense(3)])


def prefix_of(model, variables):
    """The cut's activations of all samples, and what tells the cut."""
    kinds = []

    @tf.function(input_signature=[tf.TensorSpec((SAMPLES, 8))])
    def run(x):
        with freezing.frozen(freezing.left_out(model, variables)):
            y_pred = model(x, training=True)
        cut = find_cut(tf.compat.v1.get_default_graph(), [x], [y_pred, *model.losses], variables)
        kinds.append(cut.kinds())
        return cut.tensors

    run.get_concrete_function()
    return run, kinds[0]


def trained_alike(build, trained):
    """Weights after some steps on inputs, and on cached activations; kinds of the cut."""
    x, y = data()
    weights = []
    for cached in (False, True):
        model = elastic(build)
        mask = np.arange(len(model.tensors)) >= len(model.tensors) - trained
        model.set_mask(mask)
        variables = [v for v, on in zip(model.tensors, mask) if on]
        activations, kinds = prefix_of(model, variables)

        @tf.function
        def step(batch, y, model=model, cached=cached, variables=variables, kinds=kinds):
            if not cached:
                return model.train_step((batch[0], y))
            inputs = tf.zeros((BATCH, 8))
            logs = model.train_step((inputs, y))
            graph = tf.compat.v1.get_default_graph()
            cut = find_cut(graph, [inputs], tf.nest.flatten(logs), variables)
            assert cut.kinds() == kinds
            hand_over(cut, batch)
            return logs

        held = activations(x) if cached else [x]
        for start in (0, 4, 8, 12, 0):
            rows = slice(start, start + BATCH)
            step([part[rows] for part in held], y[rows])
        weights.append(model.get_weights())
    return weights, kinds


@pytest.mark.parametrize(
    "build, trained, cuts",
    [
        (chain, 2, 1),
        (chain, 4, 1),
        (residual, 2, 1),
        (residual, 4, 1),
        (skips_to_the_head, 4, 2),
        (nested, 4, 1),
        (regularised, 4, 1 if IS_KERAS_2 else 2),  # Keras 3 sums squares, of one op in Keras 2
        (subclassed, 2, 1),
    ],
)
def test_step_on_cached_activations_trains_bit_for_bit(build, trained, cuts):
    (plain, cached), kinds = trained_alike(build, trained)
    assert len(kinds) == cuts
    for one, two in zip(plain, cached):
        np.testing.assert_array_equal(one, two)


def test_cut_is_the_last_result_before_what_is_trained():
    model = elastic(chain)
    _, kinds = prefix_of(model, model.tensors[-2:])
    assert kinds == [("Relu", tf.float32, [6])]


def test_nothing_is_cached_when_the_first_tensor_is_trained():
    model = elastic(chain)
    assert prefix_of(model, model.tensors)[1] == []


def test_nothing_is_cached_where_only_the_inputs_could_be():
    assert prefix_of(elastic(with_dropout), ())[1] and prefix_of(elastic(random_first), ())[1] == []


def test_cut_lies_before_what_is_drawn_at_random():
    model = elastic(with_dropout)
    _, kinds = prefix_of(model, model.tensors[-2:])
    assert kinds == [("Mul", tf.float32, [6])]  # scaled, and then dropped


def test_prefix_is_not_in_the_executed_step():
    model = elastic(chain)
    variables = model.tensors[-2:]
    model.set_mask(np.arange(len(model.tensors)) >= len(model.tensors) - 2)

    @tf.function
    def step(held, y):
        inputs = tf.zeros((BATCH, 8))
        logs = model.train_step((inputs, y))
        graph = tf.compat.v1.get_default_graph()
        hand_over(find_cut(graph, [inputs], tf.nest.flatten(logs), variables), [held])
        return logs

    concrete = step.get_concrete_function(
        tf.TensorSpec((BATCH, 6)), tf.TensorSpec((BATCH,), "int64")
    )
    needed = tf.compat.v1.graph_util.extract_sub_graph(
        concrete.graph.as_graph_def(),
        [t.op.name for t in tf.nest.flatten(concrete.structured_outputs)],
    )
    # the head's own and its weight gradient
    assert sum(node.op == "MatMul" for node in needed.node) == 2

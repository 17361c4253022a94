"""The frozen prefix: where a forward pass is cut, so that what lies before is computed once."""

import tensorflow as tf
from small_networks import SAMPLES, chain, elastic, with_dropout

from elastic_tf.cut import find_cut
from elastic_tf.train.engine import freezing


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

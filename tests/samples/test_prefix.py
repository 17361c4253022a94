"""The frozen prefix: where a forward pass is cut, so that what lies before is computed once."""

import numpy as np
import pytest
import tensorflow as tf
from small_networks import SAMPLES, L, chain, elastic, with_dropout

import elastic_tf as et
from elastic_tf.cut import between, find_cut
from elastic_tf.train.engine import freezing
from elastic_tf.train.engine.prefix import Forward


def random_first():
    return tf.keras.Sequential([L.Input((8,)), L.Dropout(0.5), L.Dense(3)])


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


@pytest.mark.parametrize(
    ("build", "trained", "expected"),
    [
        (chain, 2, [("Relu", tf.float32, [6])]),  # the last result before what is trained
        (chain, 8, []),
        (with_dropout, 2, [("Mul", tf.float32, [6])]),  # scaled, and then dropped
        (random_first, 0, []),  # only the inputs could be kept
    ],
)
def test_cut_lies_before_what_is_trained_or_drawn_at_random(build, trained, expected):
    model = elastic(build)
    assert kinds_of(model, model.tensors[len(model.tensors) - trained :]) == expected


def residual():
    """A convolutional network with stochastic depth in its second block."""
    inputs = x = L.Input((8, 8, 3))
    for block in range(3):
        before = x = L.Conv2D(4, 3, padding="same", activation="swish")(x)
        x = L.BatchNormalization()(L.Conv2D(4, 3, padding="same", use_bias=False)(x))
        if block == 1:
            x = L.Dropout(0.5, noise_shape=(None, 1, 1, 1))(x)
        x = L.Add()([x, before])
    outputs = L.Dense(3)(L.GlobalAveragePooling2D()(x))
    model = et.ElasticModel.from_model(tf.keras.Model(inputs, outputs))
    model.compile("sgd", "mse", statistics="stored")
    return model


def test_cut_lies_at_results_of_layers_where_one_draws_at_random():
    """So that what is kept in training serves inference, too, in which that layer does nothing."""
    model = residual()
    x = tf.random.stateless_uniform((4, 8, 8, 3), (0, 0))
    forward = Forward(model, x)
    cut = forward.cut(model.tensors[-2:])
    assert len(cut.tensors) == 2 and cut.depends_on(model.tensors).sum() == 10
    kept = between(forward.graph, forward.inputs, cut.tensors)(x)
    found = forward.behind(cut)(kept, training=False)
    np.testing.assert_allclose(found, model(x, training=False), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_what_lies_between_is_what_tensorflow_prunes(seed):
    """Of random tensors; some are both given and taken, others are given for nothing."""
    rng, model = np.random.default_rng(seed), residual()
    spec = tf.TensorSpec((4, 8, 8, 3))
    whole = tf.compat.v1.wrap_function(lambda x: model(x, training=False), [spec])
    results = [one for op in whole.graph.get_operations() for one in op.outputs]
    fixed = [one for one in results if one.dtype == tf.float32 and one.shape.rank == 4]
    # TensorFlow itself cannot have one of several results of an op given
    inner = [one for one in fixed if one.op.type not in ("IdentityN", "Placeholder")]
    few = [*whole.inputs[:1], *map(inner.__getitem__, rng.choice(len(inner), 4, replace=False))]
    taken = [*map(fixed.__getitem__, rng.choice(len(fixed), 4)), few[0], *whole.outputs]
    values = [tf.constant(rng.random(one.shape, np.float32)) for one in few]
    found = between(whole.graph, few, taken)(*values)
    wanted = whole.prune(few, taken)(*values)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)

"""Normalisations on stored statistics are folded into convolutions, and training is the same."""

import numpy as np
import pytest
import tensorflow as tf
from training import assert_kept_alike

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.graph import reach, takes

pytestmark = pytest.mark.usefixtures("deterministic")
L = tf.keras.layers
SCE = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def bias_before(x):
    return L.BatchNormalization()(L.Conv2D(4, 3, 2, padding="same", name="conv")(x))


def no_scale(x):
    return L.BatchNormalization(scale=False)(L.Conv2D(4, 3, use_bias=False, name="conv")(x))


def depthwise(x):
    layer = L.DepthwiseConv2D(3, 2, depth_multiplier=2, use_bias=False, name="conv")
    return L.BatchNormalization()(layer(x))


def two_users(x):
    x = L.Conv2D(4, 3, padding="same", name="conv")(x)
    return L.Add()([x, L.BatchNormalization()(x)])


FOLDED = [bias_before, no_scale, depthwise, two_users]


def after_an_activation(x):
    return L.BatchNormalization()(L.Conv2D(4, 3, activation="relu", name="conv")(x))


def other_axis(x):
    return L.BatchNormalization(axis=1)(L.Conv2D(4, 3, name="conv")(x))


def half(x):
    x = L.Conv2D(4, 3, dtype="mixed_bfloat16", name="conv")(x)
    return L.BatchNormalization(dtype="mixed_bfloat16")(x)


KEPT = [after_an_activation, other_axis, half]


def network(end):
    """Something trained, an end with a normalisation that has statistics, and a head."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((12, 12, 3))
    x = L.Conv2D(3, 3, padding="same", activation="relu", name="first")(inputs)
    x = L.ReLU(6.0)(L.Activation("linear", dtype="float32")(end(x)))
    x = L.Dense(3, name="head")(L.GlobalAveragePooling2D()(x))
    made = tf.keras.Model(inputs, x)
    rng = np.random.default_rng(0)
    for layer in made.layers:
        if isinstance(layer, L.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, part.shape) for part in layer.get_weights()])
    return made


def batch(count=8):
    rng = np.random.default_rng(1)
    return rng.normal(size=(count, 12, 12, 3)).astype(np.float32), np.arange(count) % 3


def normal_of(model):
    return np.array(["batch_norm" in tensor.name for tensor in model.tensors])


def gradients_of(model, variables):
    """The loss and the gradients, and the types of the ops that run."""
    data = tuple(map(tf.constant, batch()))
    traced = tf.function(
        lambda: (lambda step, found: (step.loss, *found))(*model.gradients(data, variables))
    )
    graph = traced.get_concrete_function().graph
    wanted = reach((tensor.op for tensor in graph.outputs), takes)
    return [part.numpy() for part in traced()], [op.type for op in wanted]


def by_keras(made, variables, training=True):
    x, y = map(tf.constant, batch())

    @tf.function  # where half precision is rounded depends on what is fused
    def traced():
        with tf.GradientTape() as tape:
            loss = SCE(y, made(x, training=training))
        return [loss, *tape.gradient(loss, variables)]

    return [part.numpy() for part in traced()]


def elastic(end, statistics="batch"):
    model = et.ElasticModel.from_model(network(end))
    model.compile("sgd", SCE, statistics=statistics)
    return model


@pytest.mark.parametrize("end", FOLDED + KEPT)
def test_gradients_are_those_of_keras(end):
    model, theirs = elastic(end), network(end)
    for layer in theirs.layers:
        layer.trainable = not isinstance(layer, L.BatchNormalization)
    variables = [v for v, out in zip(model.tensors, normal_of(model)) if not out]
    assert_alike(model, theirs, variables, end)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("end", FOLDED + KEPT)
def test_trained_ones_are_folded_where_statistics_are_stored(end, seed):
    model = elastic(end, "stored")
    drawn = np.random.default_rng(seed).random(len(model.tensors)) < 0.6
    drawn[0] = drawn[normal_of(model)] = True
    variables = [v for v, is_trained in zip(model.tensors, drawn) if is_trained]
    assert_alike(model, network(end), variables, end, training=False)


def assert_alike(model, theirs, variables, end, **options):
    """The loss and the gradients are Keras's, and nothing of KEPT alone is folded."""
    ours, kinds = gradients_of(model, variables)
    same = {id(stack.raw(v)): stack.raw(w) for v, w in zip(model.weights, theirs.weights)}
    expected = by_keras(theirs, [same[id(v)] for v in variables], **options)
    for one, other in zip(ours, expected):
        tolerance = 2e-2 if end is half else 1e-4
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * np.abs(other).max())
    runs = any("FusedBatchNorm" in kind for kind in kinds) or end is other_axis
    assert runs == (end in KEPT)


def test_one_that_is_trained_on_the_statistics_of_a_batch_is_not_folded():
    model = elastic(bias_before)
    _, kinds = gradients_of(model, model.tensors[-3:])  # its offset among them
    assert "FusedBatchNormV3" in kinds


def test_eager_training_runs_keras_own():
    losses = []
    for run_eagerly in (False, True):
        model = elastic(bias_before)
        model.compile("sgd", SCE, run_eagerly=run_eagerly)
        model.set_mask(~normal_of(model))
        losses.append(model.fit(*batch(), batch_size=4, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def mixed(x):
    """Normalisations behind convolutions with and without a bias, and one that is not folded."""
    x = L.ReLU(6.0)(depthwise(x))
    x = L.BatchNormalization()(L.Conv2D(4, 1, activation="relu")(x))
    x = L.BatchNormalization()(L.Conv2D(4, 1, use_bias=False)(x))
    return L.BatchNormalization(center=False)(L.Conv2D(4, 1)(x))


@pytest.mark.parametrize("first", [3, 4, 9, 12, 14])
def test_any_tensors_train_on_samples_as_on_batches(first):
    """What is kept was folded; one trained on its batch is not folded in the step."""

    def made():
        model = et.ElasticModel.from_model(network(mixed))
        model.compile("sgd", SCE, statistics=("batch", "stored")[first % 2])
        trained = np.random.default_rng(first).random(len(model.tensors)) < 0.5
        trained[:first] = False
        trained[first] = True
        model.set_mask(trained)
        return model

    assert_kept_alike(made, batch(16), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [4, 8])  # samples: 4 * 4 * 4 * 16 results, then twice as many
def test_a_kernel_that_is_larger_than_its_results_is_not_scaled(count):
    inputs = L.Input((4, 4, 8))
    x = L.BatchNormalization()(L.Conv2D(16, 3, padding="same", use_bias=False)(inputs))
    x = L.Dense(3)(L.GlobalAveragePooling2D()(L.ReLU()(x)))
    model = et.ElasticModel.from_model(tf.keras.Model(inputs, x))
    model.compile("sgd", SCE)
    model.set_mask(np.array([False] * 3 + [True] * 2))
    data = tf.zeros((count, 4, 4, 8)), tf.zeros(count, tf.int32)
    graph = tf.function(model.train_step).get_concrete_function(data).graph
    kinds = {op.type for op in graph.get_operations() if any(t.consumers() for t in op.outputs)}
    assert ("FusedBatchNormV3" in kinds) == (3 * 3 * 8 * 16 > count * 4 * 4 * 16)

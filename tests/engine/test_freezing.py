"""Layers that are left out stand still, stored statistics are used, and what can be is folded."""

import numpy as np
import pytest
import tensorflow as tf
from networks import L, crossentropy, images, network, values
from training import assert_kept_alike

from elastic_tf import stack
from elastic_tf.graph import reach, takes
from elastic_tf.model import ElasticModel
from elastic_tf.train.engine import freezing

pytestmark = pytest.mark.usefixtures("deterministic")


class Stubborn(tf.keras.layers.Layer):
    """Counts its calls and shrinks its own kernel, whatever `trainable` says."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1],), initializer="ones")
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.calls.assign_add(1.0)
        self.kernel.assign(self.kernel * 0.5)
        return inputs * self.kernel


def names(layers) -> list[str]:
    return [layer.name for layer in layers]


def test_left_out_are_layers_with_buffers_and_tensors_none_of_which_is_trained():
    model = network()
    trained = [model.get_layer("conv1").kernel, model.get_layer("bn2").gamma]
    assert names(freezing.left_out(model, trained)) == ["bn1"]
    model.get_layer("bn1").trainable = False  # of which Keras takes care
    assert names(freezing.left_out(model, [])) == ["bn2"]
    bare = tf.keras.Sequential([L.Input((4,)), L.BatchNormalization(center=False, scale=False)])
    assert freezing.left_out(bare, []) == []


def test_frozen_layer_keeps_every_bit_when_it_assigns_regardless():
    layer = Stubborn()
    layer(tf.ones((2, 3)))
    before = values(layer.weights)
    with freezing.frozen([layer]):
        layer(tf.ones((2, 3)), training=True)
    assert values(layer.weights) == before


def test_frozen_layer_stays_frozen_until_the_last_holder_leaves():
    model = network()
    layer = model.get_layer("bn1")
    first = freezing.frozen([layer])
    first.__enter__()
    # another thread asks while the first is inside
    assert names(freezing.left_out(model, [])) == ["bn1", "bn2"]
    with freezing.frozen([layer]):
        first.__exit__(None, None, None)
        assert not layer.trainable
    assert layer.trainable


def normalised() -> ElasticModel:
    """A trained normalisation, one without tensors, one that the user froze, and dropout."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((6, 6, 2))
    x = L.BatchNormalization(center=False, scale=False, momentum=0.5, name="bare")(inputs)
    x = L.BatchNormalization(momentum=0.5, name="bn")(L.Conv2D(4, 3)(x))
    x = L.BatchNormalization(momentum=0.5, name="held")(x)
    x = L.Dropout(0.5, name="dropout")(L.Flatten()(x))
    model = ElasticModel(inputs, L.Dense(3, name="head")(x))
    model.get_layer("held").trainable = False
    model.compile("sgd", crossentropy(), statistics="stored", keep=0.25)
    return model


def test_stored_statistics_are_used_and_kept_where_scale_and_offset_are_trained():
    model, (x, y) = normalised(), map(tf.constant, images())
    before, scale = values(model.non_trainable_weights), values(model.get_layer("bn").weights[:2])
    seen = []
    head = model.get_layer("head")
    head.call = lambda x, **options: seen.append(x.numpy()) or type(head).call(head, x)
    model.forward((x, y))
    del head.call
    dropped = seen[0]
    inside = tf.keras.Model(model.input, model.get_layer("held").output)(x).numpy()
    expected = 2.0 * inside.reshape(len(x), -1)  # of what dropout leaves
    np.testing.assert_allclose(dropped[dropped != 0], expected[dropped != 0], rtol=1e-5)
    assert 0.3 < (dropped == 0).mean() < 0.7
    model.fit(x, y, verbose=0)
    assert values(model.non_trainable_weights) == before
    assert values(model.get_layer("bn").weights[:2]) != scale
    assert model.get_layer("bn").trainable and not model.get_layer("held").trainable


@pytest.mark.parametrize(
    "kind", [lambda: L.BatchNormalization(synchronized=True), *stack.NORMALISATIONS[1:]]
)
def test_synchronised_normalisation_keeps_its_statistics_too(kind):
    model = ElasticModel.from_model(tf.keras.Sequential([L.Input((2,)), kind(), L.Dense(1)]))
    model.compile("sgd", "mse", statistics="stored")
    before = values(model.non_trainable_weights)
    model.fit(np.random.default_rng(0).normal(3.0, 2.0, (8, 2)), np.zeros(8), verbose=0)
    assert values(model.non_trainable_weights) == before


def test_options_of_the_step_are_saved_with_the_model(tmp_path):
    model = normalised()
    model.save(tmp_path / "model.keras")
    read = tf.keras.models.load_model(tmp_path / "model.keras")._elastic
    assert (read.statistics, read.keep) == ("stored", 0.25)
    with pytest.raises(ValueError, match="`statistics` must be one of batch, stored.*'moving'"):
        model.compile("sgd", "mse", statistics="moving")


# Ends of networks whose normalisation is folded, and others whose is not.


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


def after_an_activation(x):
    return L.BatchNormalization()(L.Conv2D(4, 3, activation="relu", name="conv")(x))


def other_axis(x):
    return L.BatchNormalization(axis=1)(L.Conv2D(4, 3, name="conv")(x))


def half(x):
    x = L.Conv2D(4, 3, dtype="mixed_bfloat16", name="conv")(x)
    return L.BatchNormalization(dtype="mixed_bfloat16")(x)


def mixed(x):
    """Normalisations behind convolutions with and without a bias, and one that is not folded."""
    x = L.ReLU(6.0)(depthwise(x))
    x = L.BatchNormalization()(L.Conv2D(4, 1, activation="relu")(x))
    x = L.BatchNormalization()(L.Conv2D(4, 1, use_bias=False)(x))
    return L.BatchNormalization(center=False)(L.Conv2D(4, 1)(x))


KEPT = [after_an_activation, other_axis, half]
ENDS = [bias_before, no_scale, depthwise, two_users, *KEPT]


def ending(end):
    """Something trained, an end with a normalisation that has statistics, and a head."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((12, 12, 3))
    x = L.Conv2D(3, 3, padding="same", activation="relu", name="first")(inputs)
    x = L.ReLU(6.0)(L.Activation("linear", dtype="float32")(end(x)))
    made = tf.keras.Model(inputs, L.Dense(3, name="head")(L.GlobalAveragePooling2D()(x)))
    rng = np.random.default_rng(0)
    for layer in made.layers:
        if isinstance(layer, L.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, part.shape) for part in layer.get_weights()])
    return made


def elastic(end, **options):
    model = ElasticModel.from_model(ending(end))
    model.compile("sgd", crossentropy(), **options)
    return model


def batch(count=8):
    rng = np.random.default_rng(1)
    return rng.normal(size=(count, 12, 12, 3)).astype(np.float32), np.arange(count) % 3


def normal_of(model):
    return np.array(["batch_norm" in tensor.name for tensor in model.tensors])


@pytest.mark.parametrize(
    ("statistics", "share"), [("batch", 1.0), ("stored", 0.6), ("stored", 1.0)]
)
@pytest.mark.parametrize("end", ENDS)
def test_gradients_are_those_of_keras_and_all_but_some_are_folded(end, statistics, share):
    """Left-out ones on a batch's statistics; on stored ones, trained ones too."""
    model, theirs, is_batch = (
        elastic(end, statistics=statistics),
        ending(end),
        statistics == "batch",
    )
    drawn = np.random.default_rng(0).random(len(model.tensors)) < share
    drawn[0], drawn[normal_of(model)] = True, not is_batch
    variables = [v for v, is_trained in zip(model.tensors, drawn) if is_trained]
    given = None if drawn.all() else variables
    variables = variables if given else stack.trainable(model)
    same = {id(stack.raw(v)): stack.raw(w) for v, w in zip(model.weights, theirs.weights)}
    x, y = map(tf.constant, batch())

    @tf.function
    def ours():
        step, found = model.gradients((x, y), given)
        return [step.loss, *found]

    @tf.function  # where half precision is rounded depends on what is fused
    def by_keras():
        with tf.GradientTape() as tape:
            loss = crossentropy()(y, theirs(x, training=is_batch))
        return [loss, *tape.gradient(loss, [same[id(v)] for v in variables])]

    for layer in theirs.layers if is_batch else []:
        layer.trainable = not isinstance(layer, L.BatchNormalization)
    for one, other in zip(ours(), by_keras(), strict=True):
        tolerance = 2e-2 if end is half else 1e-4
        atol = tolerance * np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=atol)
    graph = ours.get_concrete_function().graph
    kinds = {op.type for op in reach((tensor.op for tensor in graph.outputs), takes)}  # that run
    runs = any("FusedBatchNorm" in kind for kind in kinds)
    assert (runs or end is other_axis) == (end in KEPT)


def test_eager_training_runs_keras_own():
    losses = []
    for run_eagerly in (False, True):
        model = elastic(bias_before, run_eagerly=run_eagerly)
        model.set_mask(~normal_of(model))
        losses.append(model.fit(*batch(), batch_size=4, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("first", [3, 4, 9, 12, 14])
def test_any_tensors_train_on_samples_as_on_batches(first):
    """What is kept was folded; one trained on its batch is not folded in the step."""

    def made():
        model = elastic(mixed, statistics=("batch", "stored")[first % 2])
        trained = np.random.default_rng(first).random(len(model.tensors)) < 0.5
        trained[:first], trained[first] = False, True
        model.set_mask(trained)
        return model

    assert_kept_alike(made, batch(16), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [4, 8])  # samples: 4 * 4 * 4 * 16 results, then twice as many
def test_a_kernel_that_is_larger_than_its_results_is_not_scaled(count):
    inputs = L.Input((4, 4, 8))
    x = L.BatchNormalization()(L.Conv2D(16, 3, padding="same", use_bias=False)(inputs))
    x = L.Dense(3)(L.GlobalAveragePooling2D()(L.ReLU()(x)))
    model = ElasticModel.from_model(tf.keras.Model(inputs, x))
    model.compile("sgd", crossentropy())
    model.set_mask(np.array([False] * 3 + [True] * 2))
    data = tf.zeros((count, 4, 4, 8)), tf.zeros(count, tf.int32)
    graph = tf.function(model.train_step).get_concrete_function(data).graph
    kinds = {op.type for op in graph.get_operations() if any(t.consumers() for t in op.outputs)}
    assert ("FusedBatchNormV3" in kinds) == (3 * 3 * 8 * 16 > count * 4 * 4 * 16)

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from networks import K, L, crossentropy, values
from test_baselines import CLASSES, arrays, data, network

from elastic_tf import zoo
from elastic_tf.activations import activation_bytes
from elastic_tf.baselines import get, sparing
from elastic_tf.baselines.lite_residual import LiteResidual
from elastic_tf.baselines.method import Task
from elastic_tf.baselines.tinytl import tinytl_tensors, with_lite_residuals
from elastic_tf.model import ElasticModel

FLOAT, BOOL = 4, 1  # bytes


def modules(model: tf.keras.Model) -> list[LiteResidual]:
    return [layer for layer in model.layers if isinstance(layer, LiteResidual)]


def compiled(model: tf.keras.Model) -> ElasticModel:
    elastic = ElasticModel.from_model(model)
    elastic.compile(K.Adam(1e-2), crossentropy())
    return elastic


@functools.cache
def training() -> SimpleNamespace:
    """One training, for several tests to look at."""
    given = network()
    model = compiled(with_lite_residuals(given))
    watched = {"given": given.weights, "tensors": model.tensors}
    watched["statistics"] = model.non_trainable_weights
    before = {name: values(variables) for name, variables in watched.items()}
    callbacks = get("tinytl").callbacks(Task(model))
    model.fit(data().take(2), epochs=2, verbose=0, callbacks=callbacks)
    moved = {
        name: np.array([one != two for one, two in zip(before[name], values(variables))])
        for name, variables in watched.items()
    }
    return SimpleNamespace(model=model, moved=moved)


def test_outputs_are_the_same_bit_for_bit():
    model, (x, _) = network(), arrays()
    adapted = with_lite_residuals(model)
    assert len(modules(adapted)) == 2
    np.testing.assert_array_equal(adapted(x), model(x))
    np.testing.assert_array_equal(adapted(x, training=True), model(x))
    np.testing.assert_allclose(adapted.predict(x, verbose=0), model(x), rtol=1e-5, atol=1e-6)


def test_kernels_and_scales_of_the_backbone_are_frozen_and_the_rest_learns():
    model, moved = training().model, training().moved["tensors"]
    np.testing.assert_array_equal(moved, tinytl_tensors(model))
    names = [tensor.name for tensor, on in zip(model.tensors, moved) if on]
    assert {name for name in names if "lite" not in name} == {
        *(f"{name}_bn/beta:0" for name in ("stem", "in", "out", "depthwise", "pointwise")),
        *("in/bias:0", "out/bias:0", "head/kernel:0", "head/bias:0"),
    }
    # a kernel for each group, scale and shift, 1x1, scale
    inside = sum(len(module.grouped) + 4 for module in modules(model))
    assert sum("lite" in name for name in names) == inside


def test_the_given_model_does_not_learn():
    assert not training().moved["given"].any()


def test_statistics_stand_still():
    assert not training().moved["statistics"].any()


def test_normalisation_by_the_batch_stays_as_it_is():
    inputs = L.Input((8, 8, 2))
    x = L.Conv2D(4, 1, name="conv")(inputs)
    x = L.Add(name="add")([x, L.BatchNormalization(name="bn")(L.Conv2D(4, 3, padding="same")(x))])
    model = tf.keras.Model(inputs, L.Dense(CLASSES)(L.Flatten()(x)))
    adapted = with_lite_residuals(model)
    assert type(adapted.get_layer("bn")) is L.BatchNormalization
    x = arrays()[0]
    np.testing.assert_array_equal(adapted(x, training=True), model(x, training=True))


def test_an_adapted_model_is_returned_as_it_is():
    adapted = with_lite_residuals(network())
    assert with_lite_residuals(adapted) is adapted


def test_an_adapted_model_is_saved_and_read(tmp_path):
    model = with_lite_residuals(network())
    generator = np.random.default_rng(0)
    for module in modules(model):
        module.set_weights([generator.normal(size=w.shape) for w in module.get_weights()])
    model.save(tmp_path / "model.keras")
    x = arrays()[0]
    read = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(read(x), model(x), rtol=1e-6)
    weights = tmp_path / "weights.h5"
    ElasticModel.from_model(model).save_weights(weights)
    again = ElasticModel.from_model(with_lite_residuals(network()))
    again.load_weights(weights)
    np.testing.assert_array_equal(again(x), model(x))


def test_layers_called_twice_and_several_inputs_survive():
    one, two = L.Input((8, 8, 2)), L.Input((8, 8, 2))
    shared = L.Conv2D(4, 3, padding="same")
    x, y = shared(one), shared(two)
    z = L.Add()([x, L.Conv2D(4, 3, padding="same")(x)])
    z = L.GlobalAveragePooling2D()(tf.nn.relu(L.Concatenate()([z, y])) * 2.0)
    model = tf.keras.Model([one, two], [L.Dense(2)(z), z])
    adapted = with_lite_residuals(model)
    assert len(modules(adapted)) == 1
    assert len(adapted.weights) == len(model.weights) + len(modules(adapted)[0].weights)
    rng = np.random.default_rng(0)
    images = [rng.normal(size=(2, 8, 8, 2)).astype(np.float32) for _ in range(2)]
    for before, after in zip(model(images), adapted(images)):
        np.testing.assert_array_equal(after, before)


def test_frozen_layers_stay_frozen():
    model = network()
    model.get_layer("in").trainable = False
    adapted = with_lite_residuals(model)
    assert not adapted.get_layer("in").trainable
    inside = sum(len(module.trainable_weights) for module in modules(adapted))
    assert len(adapted.trainable_weights) == len(model.trainable_weights) + inside


@pytest.mark.parametrize(
    ("block_input", "block_output", "kernel"),
    [
        ((8, 8, 4), (8, 8, 6), 3),  # pooled to 4: the largest odd kernel inside is 3
        ((16, 16, 4), (8, 8, 6), 5),
        ((7, 7, 4), (4, 4, 6), 3),
        ((5, 9, 3), (5, 9, 3), 1),
        ((3, 3, 4), (3, 3, 4), 1),  # pooled to a point
        ((1, 1, 4), (1, 1, 4), 1),
        ((12, 12, 4), (4, 4, 4), 5),
    ],
)
def test_a_module_fits_blocks_of_any_size_and_adds_nothing_at_first(
    block_input, block_output, kernel
):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(2, *shape)).astype("float32") for shape in (block_input, block_output))
    module = LiteResidual()
    np.testing.assert_array_equal(module([x, y]), y)
    assert module.grouped[0].kernel_size == (kernel, kernel)
    assert len(module.grouped) == (1 if block_input[-1] % 2 else 2)
    module.last_norm.gamma.assign(tf.ones_like(module.last_norm.gamma))
    assert module([x, y]).shape == y.shape
    assert module.last_norm.beta is None


def test_the_groups_do_not_see_each_other():
    module = LiteResidual(kernel_size=3)
    x = np.random.default_rng(0).normal(size=(1, 8, 8, 4)).astype("float32")
    module([x, x])
    first, second = (layer(part) for layer, part in zip(module.grouped, np.split(x, 2, axis=-1)))
    kernel = np.zeros((3, 3, 4, 4), np.float32)
    kernel[:, :, :2, :2] = module.grouped[0].kernel
    kernel[:, :, 2:, 2:] = module.grouped[1].kernel
    whole = tf.nn.conv2d(x, kernel, 1, "SAME")
    np.testing.assert_allclose(tf.concat([first, second], -1), whole, rtol=1e-4, atol=1e-5)


def test_a_module_must_know_the_size():
    with pytest.raises(ValueError, match=r"size.*Received: shapes \(None, None, None, 4\)"):
        LiteResidual().build([tf.TensorShape([None, None, None, 4])] * 2)


def test_a_module_is_lighter_than_its_block():
    # the grouped convolution has a quarter of the pixels
    inputs = L.Input((32, 32, 64))
    x = L.DepthwiseConv2D(3, padding="same")(inputs)
    x = L.GlobalAveragePooling2D()(L.Conv2D(64, 1)(x))
    (module,) = modules(with_lite_residuals(tf.keras.Model(inputs, L.Dense(2)(x))))
    # half of 9 * 64 + 64 * 64 is 2336 for each pixel; 5x5 in eight groups 25 * 64 * 64 / 8 / 4 is
    # 3200, 3x3 in two groups 4608, in four 2304
    assert (module.grouped[0].kernel_size, len(module.grouped)) == ((3, 3), 4)


def test_inverted_residuals_get_the_modules_of_the_source():
    inputs = L.Input((32, 32, 24))
    x = L.DepthwiseConv2D(3, padding="same")(L.Conv2D(144, 1)(inputs))
    x = L.GlobalAveragePooling2D()(L.Add()([inputs, L.Conv2D(24, 1)(x)]))
    (module,) = modules(with_lite_residuals(tf.keras.Model(inputs, L.Dense(2)(x))))
    assert [layer.kernel.shape for layer in module.grouped] == [(5, 5, 12, 12)] * 2
    assert module.pointwise.kernel.shape == (1, 1, 24, 24)


def test_a_module_is_as_narrow_as_the_bottleneck():
    inputs = L.Input((16, 16, 32))
    x = L.Conv2D(8, 3, padding="same")(L.Conv2D(8, 1)(inputs))
    x = L.Add()([inputs, L.Conv2D(32, 1)(x)])
    model = tf.keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling2D()(x)))
    (module,) = modules(with_lite_residuals(model))
    assert module.pointwise.kernel.shape == (1, 1, 8, 32)


def gradients(layer: L.Layer, x: tf.Tensor, **options) -> list[np.ndarray]:
    """The result, and the gradients of a weighted sum of it."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, **options)
        weights = np.arange(y.shape.num_elements(), dtype=np.float32).reshape(y.shape)
        weighted = tf.reduce_sum(tf.where(tf.math.is_finite(y), y, 0.0) * weights)
    return [y, *tape.gradient(weighted, [x, *layer.trainable_weights])]


@pytest.mark.parametrize("options", [{}, {"scale": False}, {"center": False}, {"epsilon": 1e-7}])
def test_stored_normalisation_is_batch_normalisation_at_inference(options):
    x = tf.random.stateless_normal((2, 3, 3, 4), [0, 1])
    layers = [L.BatchNormalization(**options), sparing.StoredNormalization(**options)]
    rng = np.random.default_rng(0)
    for layer in layers:
        layer.build(x.shape)
    layers[0].set_weights([rng.uniform(0.5, 2, w.shape) for w in layers[0].get_weights()])
    layers[1].set_weights(layers[0].get_weights())
    usual = gradients(layers[0], x, training=False)
    for training in (False, True):
        found = gradients(layers[1], x, training=training)
        np.testing.assert_array_equal(found[0], usual[0])
        for one, other in zip(found, usual):
            np.testing.assert_allclose(one, other, rtol=1e-4)


@pytest.mark.parametrize("bound", [None, 6.0])
def test_masked_relu_is_relu(bound):
    numbers = [-2.0, -0.0, 0.0, 1.0, 6.0, 7.0, np.inf, -np.inf, np.nan]
    x = tf.reshape(tf.constant(numbers), (1, 1, 1, -1))
    usual = gradients(L.ReLU(bound), x)
    for one, other in zip(gradients(sparing.MaskedReLU(bound), x), usual):
        np.testing.assert_array_equal(one, other)


def test_half_precision_is_kept():
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = network()
        adapted = with_lite_residuals(model)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    x = arrays()[0]
    np.testing.assert_array_equal(adapted(x), model(x))
    assert {module.compute_dtype for module in modules(adapted)} == {"float16"}
    assert adapted.get_layer("block_relu").compute_dtype == "float16"


def test_other_layers_are_not_replaced():
    layers = [L.ReLU(negative_slope=0.1), L.ReLU(threshold=1.0), L.ReLU(3.0), L.PReLU()]
    layers += [L.Activation("tanh"), L.BatchNormalization(axis=1), L.Dense(3)]
    for layer in layers:
        layer.build((None, 4, 4, 3))
        assert type(sparing.in_place_of(layer, is_stored=True)) is type(layer)
    assert type(sparing.in_place_of(L.Activation("relu"), is_stored=True)) is sparing.MaskedReLU


def test_a_frozen_backbone_keeps_one_byte_for_each_relu():
    inputs = L.Input((8, 8, 3))
    x = L.BatchNormalization(name="bn1")(L.Conv2D(4, 1, name="conv1")(inputs), training=False)
    x = L.ReLU(6.0)(x)
    x = L.BatchNormalization(name="bn2")(L.Conv2D(5, 1, name="conv2")(x), training=False)
    x = L.GlobalAveragePooling2D()(L.ReLU()(x))
    model = tf.keras.Model(inputs, L.Dense(CLASSES, name="head")(x))
    same = tf.keras.models.clone_model(
        model, clone_function=lambda layer: sparing.in_place_of(layer, is_stored=True)
    )
    batch = np.ones((2, 8, 8, 3), np.float32), np.zeros(2)
    usual, less = compiled(model), compiled(same)
    mask = np.array([not tensor.name.endswith(("kernel:0", "gamma:0")) for tensor in less.tensors])
    loss = FLOAT * 2 * CLASSES
    pixels = 2 * 8 * 8
    # usually the input of both normalisations and the result of both activations
    assert activation_bytes(usual, batch, mask) == loss + FLOAT * pixels * (4 + 4 + 5 + 5)
    assert activation_bytes(less, batch, mask) == loss + BOOL * pixels * (4 + 5)


def test_modules_keep_what_they_learn_from_at_half_the_resolution():
    usual, adapted = network(), with_lite_residuals(network())
    batch = tuple(part[:4] for part in arrays())
    usual, adapted = compiled(usual), compiled(adapted)
    full = activation_bytes(usual, batch)
    mask = tinytl_tensors(adapted)
    assert activation_bytes(adapted, batch, mask) < 0.75 * full
    ours = np.array(["lite" in tensor.name for tensor in adapted.tensors])
    without = activation_bytes(adapted, batch, mask & ~ours)
    # where scales start at zero all the same: the graph does not know values
    assert without < activation_bytes(adapted, batch, mask)


def test_a_model_without_blocks_is_refused():
    layers = [L.Input((8, 8, 3)), L.Conv2D(4, 3), L.MaxPool2D(), L.Flatten(), L.Dense(2)]
    model = tf.keras.Sequential(layers, name="plain")
    with pytest.raises(ValueError, match=r"Received: 'plain' of Conv2D, Dense, .*'bn_bias'"):
        with_lite_residuals(model)


def test_what_is_no_graph_of_layers_is_refused():
    class Subclassed(tf.keras.Model):
        pass

    with pytest.raises(TypeError, match="Received: 'subclassed' of class Subclassed"):
        with_lite_residuals(Subclassed())
    with pytest.raises(TypeError, match="Received: 3 of type int"):
        with_lite_residuals(3)


def test_a_loss_beside_the_graph_is_refused():
    model = network()
    model.add_loss(tf.reduce_mean(model.output))
    with pytest.raises(ValueError, match="'model.*' with '.*' beside them"):
        with_lite_residuals(model)


def test_a_layer_without_config_is_named():
    class Opaque(L.Layer):
        def __init__(self, function):
            super().__init__(name="opaque")
            self.function = function

        def call(self, inputs):
            return self.function(inputs)

    model = network()
    model = tf.keras.Model(model.input, Opaque(tf.nn.softmax)(model.output))
    with pytest.raises(TypeError, match="Received: 'opaque' of class Opaque"):
        with_lite_residuals(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"), [("mobilenet", 13), ("mobilenet_v2", 17), ("resnet50", 16)]
)
def test_the_models_of_the_zoo_are_adapted_and_need_less(name, count):
    model = zoo.build(name, classes=CLASSES, input_size=64)
    adapted = with_lite_residuals(model)
    assert len(modules(adapted)) == count
    x = np.random.default_rng(0).uniform(0, 255, (2, 64, 64, 3)).astype("float32")
    np.testing.assert_array_equal(adapted(x), model(x))
    batch = x, np.zeros(2)
    usual, elastic = compiled(model), compiled(adapted)
    ours = activation_bytes(elastic, batch, tinytl_tensors(elastic))
    assert ours < 0.5 * activation_bytes(usual, batch)

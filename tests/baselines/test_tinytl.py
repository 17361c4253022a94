import functools
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from activations import activation_bytes
from networks import K, L, crossentropy, values
from related.tinytl import blocks, tinytl_tensors, with_lite_residuals
from related.tinytl.lite_residual import LiteResidual
from test_baselines import CLASSES, arrays, data, network

from elastic_tf.app import zoo
from elastic_tf.methods.baselines import Task, get
from elastic_tf.model import ElasticModel

pytestmark = pytest.mark.hours  # a reproduction, apart from the package


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
    callbacks = get("related:tinytl").callbacks(Task(model))
    model.fit(data().take(2), epochs=2, verbose=0, callbacks=callbacks)
    moved = {
        name: np.array([one != two for one, two in zip(before[name], values(variables))])
        for name, variables in watched.items()
    }
    return SimpleNamespace(model=model, moved=moved)


def test_kernels_and_scales_of_the_backbone_are_frozen_and_the_rest_learns():
    model, moved = training().model, training().moved["tensors"]
    np.testing.assert_array_equal(moved, tinytl_tensors(model))
    assert not training().moved["given"].any() and not training().moved["statistics"].any()
    names = [tensor.name for tensor, on in zip(model.tensors, moved) if on]
    assert {name for name in names if "lite" not in name} == {
        *(f"{name}_bn/beta:0" for name in ("stem", "inner", "depthwise", "pointwise")),
        *("inner/bias:0", "head/kernel:0", "head/bias:0"),
    }
    # a kernel for each group, scale and shift, 1x1, scale
    inside = sum(len(module.grouped) + 4 for module in modules(model))
    assert sum("lite" in name for name in names) == inside


def test_an_adapted_model_is_saved_and_read(tmp_path):
    model = with_lite_residuals(network())
    generator = np.random.default_rng(0)
    for module in modules(model):
        module.set_weights([generator.normal(size=w.shape) for w in module.get_weights()])
    model.save(tmp_path / "model.keras")
    x = arrays()[0]
    read = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(read(x), model(x), rtol=1e-6)


def test_layers_called_twice_and_several_inputs_and_outputs_survive():
    one, two = L.Input((8, 8, 2)), L.Input((8, 8, 2))
    shared = L.Conv2D(4, 3, padding="same")
    x = L.ReLU()(L.Concatenate()([shared(one), shared(two)])) / 2.0
    z = L.GlobalAveragePooling2D()(L.Add()([x, L.Conv2D(8, 3, padding="same")(x)]))
    model = tf.keras.Model([one, two], [L.Dense(2)(z), z])
    adapted = with_lite_residuals(model)
    assert len(modules(adapted)) == 1
    assert len(adapted.weights) == len(model.weights) + len(modules(adapted)[0].weights)
    rng = np.random.default_rng(0)
    images = [rng.normal(size=(2, 8, 8, 2)).astype(np.float32) for _ in range(2)]
    for before, after in zip(model(images), adapted(images)):
        np.testing.assert_array_equal(after, before)


def test_a_model_without_blocks_is_refused():
    layers = [L.Input((8, 8, 3)), L.Conv2D(4, 3), L.MaxPool2D(), L.Flatten(), L.Dense(2)]
    model = tf.keras.Sequential(layers, name="plain")
    with pytest.raises(ValueError, match=r"Received: 'plain' of Conv2D, Dense, .*'bn_bias'"):
        with_lite_residuals(model)


@pytest.mark.parametrize(("name", "count"), [("mobilenet_v2", 17), ("resnet50", 16)])
def test_the_models_of_the_zoo_are_adapted_and_need_less(name, count):
    model = ElasticModel.from_model(zoo.build(name, classes=CLASSES, input_size=64))
    adapted = with_lite_residuals(model)
    assert len(modules(adapted)) == count
    x = np.random.default_rng(0).uniform(0, 255, (2, 64, 64, 3)).astype("float32")
    np.testing.assert_array_equal(adapted(x), model(x))
    batch = x, np.zeros(2)
    usual, elastic = compiled(model), compiled(adapted)
    ours = activation_bytes(elastic, batch, tinytl_tensors(elastic))
    assert ours < 0.5 * activation_bytes(usual, batch)


def found(inputs, outputs) -> list[tuple[str, str]]:
    """The layers that make the input and the output of each block."""
    return [
        (block.input._keras_history[0].name, block.layer.name)
        for block in blocks.find(tf.keras.Model(inputs, outputs))
    ]


def conv(x, filters, name, kernel=3, **options):
    return L.Conv2D(filters, kernel, padding="same", name=name, **options)(x)


def image(channels=4):
    return L.Input((8, 8, channels), name="image")


def test_a_residual_block_starts_where_its_branches_part():
    inputs = image()
    x = start = L.ReLU(name="start")(conv(inputs, 4, "stem"))
    x = conv(L.ReLU()(conv(x, 2, "a", 1)), 2, "b", strides=2)
    x = L.Add(name="add")([conv(x, 8, "c", 1), conv(start, 8, "shortcut", 1, strides=2)])
    assert found(inputs, L.ReLU()(x)) == [("start", "add")]
    (block,) = blocks.find(tf.keras.Model(inputs, x))
    assert block.width == 2
    # 1x1: 64 pixels of 4 * 2; 3x3 of stride 2: 16 of 9 * 2 * 2; 1x1: 16 of 2 * 8; shortcut: 4 * 8
    assert block.operations == 64 * 8 + 16 * 36 + 16 * 16 + 16 * 32


@pytest.mark.parametrize(
    "outputs",
    [
        lambda x: L.Add()([x, L.Lambda(lambda x: 2 * x)(x)]),  # no convolution
        lambda x: L.Add()([L.Conv2DTranspose(4, 3, 2, padding="same")(x) for _ in range(2)]),
    ],
)
def test_an_addition_that_is_no_block(outputs):
    inputs = image()
    assert found(inputs, outputs(inputs)) == []


def test_a_depthwise_convolution_and_the_pointwise_one_after_it_are_a_block():
    inputs = image()
    x = L.ReLU(name="stem_relu")(conv(inputs, 4, "stem"))
    for index in range(2):
        x = L.ZeroPadding2D()(x)
        x = L.DepthwiseConv2D(3, 2, name=f"depthwise{index}")(x)
        x = conv(L.ReLU()(L.BatchNormalization()(x)), 6, f"pointwise{index}", 1)
        x = L.ReLU(name=f"relu{index}")(L.BatchNormalization(name=f"bn{index}")(x))
    assert found(inputs, x) == [("stem_relu", "bn0"), ("relu0", "bn1")]


def test_a_pointwise_convolution_before_the_depthwise_one_belongs_to_it():
    inputs = x = image()
    for index in range(2):
        x = L.ReLU()(conv(x, 8, f"expand{index}", 1))
        x = L.DepthwiseConv2D(3, padding="same")(x)
        x = conv(x, 4 + index, f"project{index}", 1)
    assert found(inputs, x) == [("image", "project0"), ("project0", "project1")]
    widths = [block.width for block in blocks.find(tf.keras.Model(inputs, x))]
    assert widths == [4, 5]


@pytest.mark.parametrize(
    ("block_input", "block_output", "kernel"),
    [
        ((8, 8, 4), (8, 8, 6), 3),  # pooled to 4: the largest odd kernel inside is 3
        ((16, 16, 4), (8, 8, 6), 5),
        ((5, 9, 3), (5, 9, 3), 1),
        ((3, 3, 4), (3, 3, 4), 1),  # pooled to a point
    ],
)
def test_a_module_fits_blocks_of_any_size_and_adds_nothing_at_first(
    block_input, block_output, kernel
):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(2, *shape)).astype("float32") for shape in (block_input, block_output))
    module = LiteResidual(block_input[-1])
    np.testing.assert_array_equal(module([x, y]), y)
    assert module.grouped[0].kernel_size == (kernel, kernel)
    assert len(module.grouped) == (1 if block_input[-1] % 2 else 2)
    module.last_norm.gamma.assign(tf.ones_like(module.last_norm.gamma))
    assert module([x, y]).shape == y.shape
    assert module.last_norm.beta is None


def test_inverted_residuals_get_the_modules_of_the_source():
    inputs = L.Input((32, 32, 24))
    x = L.DepthwiseConv2D(3, padding="same")(L.Conv2D(144, 1)(inputs))
    x = L.GlobalAveragePooling2D()(L.Add()([inputs, L.Conv2D(24, 1)(x)]))
    (module,) = modules(with_lite_residuals(tf.keras.Model(inputs, L.Dense(2)(x))))
    assert [layer.kernel.shape for layer in module.grouped] == [(5, 5, 12, 12)] * 2
    assert module.pointwise.kernel.shape == (1, 1, 24, 24)

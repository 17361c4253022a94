import functools
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from activations import activation_bytes
from networks import K, L, crossentropy, values
from related.tinytl import tinytl_tensors, with_lite_residuals
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


def test_outputs_are_the_same_bit_for_bit():
    model, (x, _) = ElasticModel.from_model(network()), arrays()  # normalises in one operation
    adapted = with_lite_residuals(model)
    assert len(modules(adapted)) == 2
    np.testing.assert_array_equal(adapted(x), model(x))
    np.testing.assert_array_equal(adapted(x, training=True), model(x))
    np.testing.assert_allclose(adapted.predict(x, verbose=0), model(x), rtol=1e-5, atol=1e-6)


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

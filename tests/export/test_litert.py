"""The file for LiteRT: gradients, updates and steps are those of Keras."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.app.export import litert, optimizer_settings, rules
from elastic_tf.app.export.network import Functions, Network
from elastic_tf.lite import updates
from elastic_tf.lite.trainer import Trainer
from elastic_tf.timing.profile import TimingProfile

L, OPTIMIZERS = tf.keras.layers, tf.keras.optimizers
SCE = tf.keras.losses.SparseCategoricalCrossentropy
RNG = np.random.default_rng(0)


def of_layers(layers, shape):
    x = inputs = L.Input(shape)
    for layer in layers:
        x = layer(x)
    return tf.keras.Model(inputs, x)


def gradients(model, x):
    """Of a sum of the outputs, weighted at random: of the rules, and of TensorFlow."""
    network, variables = Network(lambda x: model(x), tf.TensorSpec(x.shape)), stack.trainable(model)
    weight = RNG.normal(size=network.output.shape).astype(np.float32)

    @tf.function(autograph=False)
    def ours(x):
        values = {}
        y = network.run(values, network.input, x, network.output)
        return [y, *tf.gradients(y * weight, [x, *[values[one.ref()] for one in variables]])]

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
        total = tf.reduce_sum(y * weight)
    return zip(ours(x), [y, *tape.gradient(total, [x, *variables])])


def noise(*shape):
    return tf.constant(RNG.normal(size=shape).astype(np.float32))


def attention():
    inputs = L.Input((5, 8))
    return tf.keras.Model(inputs, L.MultiHeadAttention(2, 3)(inputs, inputs)[:, 0])


@pytest.mark.parametrize(
    "layers",
    [
        [L.Conv2D(4, 3, padding="same", activation="relu")],
        [L.Conv2D(4, (3, 2), strides=2, padding="same")],
        [L.Conv2D(4, 3, strides=(2, 3), activation="relu6")],
        [L.Conv2D(4, 1)],
        [L.Conv2D(4, 1, strides=2)],
        [L.DepthwiseConv2D(3, padding="same"), L.BatchNormalization()],
        [L.DepthwiseConv2D(3, strides=2), L.LayerNormalization()],
        [L.MaxPooling2D(3, 2, padding="same")],
        [L.MaxPooling2D(2)],
        [L.Reshape((63, 3)), L.Dense(4, "gelu")],
        [L.GlobalAveragePooling2D(), L.Dense(3, "swish")],
    ],
    ids=lambda layers: "_".join(layer.name for layer in layers),
)
def test_gradients_are_those_of_tensorflow(layers):
    model = of_layers(layers, (9, 7, 3))
    for one, other in gradients(model, noise(2, 9, 7, 3)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_gradients_of_more_channels_than_litert_takes_at_once(monkeypatch):
    monkeypatch.setattr(rules, "_MOST_CHANNELS", 8)  # two of three images
    model = of_layers([L.DepthwiseConv2D(3, strides=2)], (9, 7, 3))
    for one, other in gradients(model, noise(3, 9, 7, 3)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_gradients_of_attention_are_those_of_tensorflow():
    for one, other in gradients(attention(), noise(2, 5, 8)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_attention_and_its_gradient_are_written_in_built_in_ops():
    model, x = attention(), noise(2, 5, 8)
    network = Network(lambda x: model(x), tf.TensorSpec((2, 5, 8)))

    @tf.function(input_signature=[tf.TensorSpec((2, 5, 8), name="x")], autograph=False)
    def ours(x):
        values = {}
        y = network.run(values, network.input, x, network.output)
        return {"dx": tf.gradients(y, x)[0]}

    content = Functions._converted(SimpleNamespace(model=model), ours)
    run = tf.lite.Interpreter(model_content=content).get_signature_runner("run")
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
    np.testing.assert_allclose(run(x=x)["dx"], tape.gradient(y, x), rtol=1e-4, atol=1e-5)


@pytest.mark.hours  # the layers of all of them one by one stand above
@pytest.mark.parametrize("name", ["mobilenet_v2", "vgg16", "resnet50", "vit_ti16"])
def test_gradients_of_the_zoo_are_those_of_tensorflow(name):
    tf.keras.utils.set_random_seed(0)
    model = et.zoo.build(name, classes=3, input_size=32)
    x = tf.constant(RNG.uniform(0.0, 255.0, (2, 32, 32, 3)).astype(np.float32))
    for one, other in gradients(model, x):
        one, other = map(tf.convert_to_tensor, (one, other))
        scale = max(abs(other).numpy().max(), 1e-3)
        np.testing.assert_allclose(one / scale, other / scale, atol=1e-4)


@pytest.mark.parametrize(
    "optimizer",
    [
        OPTIMIZERS.SGD(0.1),
        OPTIMIZERS.SGD(0.1, momentum=0.9),
        OPTIMIZERS.SGD(0.1, momentum=0.9, nesterov=True),
        OPTIMIZERS.Adam(0.1),
        et.optimizers.adam(0.1),
        et.optimizers.sgdw(0.1),
    ],
)
def test_updates_are_those_of_keras(optimizer):
    size = 2 * updates._PART + 5
    value = RNG.normal(size=size).astype(np.float32)
    theirs = tf.Variable(value)
    told = optimizer_settings(SimpleNamespace(optimizer=optimizer))
    slots = updates.slots(told, 0, value)
    for step in range(1, 5):
        gradient = RNG.normal(size=size).astype(np.float32)
        optimizer.apply_gradients([(tf.constant(gradient), theirs)])
        changed = [(0, step, (value, gradient, *slots))]
        updates.update(told, told["learning_rate"], changed, threads=2)
        # 1 - 0.999 has four digits in float32
        np.testing.assert_allclose(value, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "optimizer, said",
    [
        (OPTIMIZERS.RMSprop(), "Received: RMSprop"),
        (OPTIMIZERS.Adam(clipnorm=1.0), "clipnorm=1.0"),
        (OPTIMIZERS.SGD(weight_decay=0.1), "weight_decay=0.1"),
    ],
)
def test_an_optimizer_that_is_not_written_is_refused(optimizer, said):
    with pytest.raises(ValueError, match=said):
        optimizer_settings(SimpleNamespace(optimizer=optimizer))


def elastic(*, loss=None, end=()):
    tf.keras.utils.set_random_seed(0)
    layers = [
        L.Rescaling(1 / 255),
        L.Conv2D(4, 3, 2, padding="same", name="first"),
        L.BatchNormalization(),
        L.ReLU(),
        L.Conv2D(6, 1, activation="relu", name="second"),
        *end,
        L.GlobalAveragePooling2D(),
        L.Dense(3, name="head"),
    ]
    model = et.ElasticModel.from_model(of_layers(layers, (8, 8, 3)))
    model.compile(OPTIMIZERS.SGD(0.05, momentum=0.9), loss or SCE(from_logits=True))
    return model


def chain(model):
    ones = [1.0] * len(model.tensors)
    return TimingProfile.from_chain(t_dw=ones, t_dy=ones, t_forward=float(len(ones)))


@pytest.mark.slow
def test_ten_steps_of_every_plan_are_those_of_the_model(tmp_path):
    model = elastic()
    masks = litert(model, tmp_path / "out", chain(model), (0.7, 1.0))
    told = json.loads((tmp_path / "out" / "model.json").read_text())
    trained = [np.flatnonzero(mask).tolist() for mask in masks]
    assert [plan["tensors"] for plan in told["plans"]] == trained
    assert masks[0].sum() < masks[1].sum() == len(model.tensors)
    runner = Trainer(tmp_path / "out", interpreter=tf.lite.Interpreter)
    x = RNG.uniform(0, 255, (10, 4, 8, 8, 3)).astype(np.float32)
    y = RNG.integers(0, 3, (10, 4)).astype(np.int32)
    np.testing.assert_allclose(runner.predict(x[0]), model(x[0]), atol=1e-5)
    weights = model.get_weights()
    for k, mask in enumerate(masks):
        runner.load(tmp_path / "out" / "weights.state")
        start = {index: value.copy() for index, value in runner.weights.items()}
        ours = elastic()
        ours.set_weights(weights)
        # normalisations keep their statistics in the file
        for layer in ours.layers:
            if isinstance(layer, L.BatchNormalization):
                layer.call = lambda x, layer=layer, **_: type(layer).call(layer, x, training=False)
        ours.set_mask(mask)
        for one, classes in zip(x, y):
            loss = runner.step(k, runner.batch(one, classes, slice(4)), 0.05)
            assert loss == pytest.approx(ours.train_on_batch(one, classes), abs=1e-5)
        for index, value in runner.weights.items():
            np.testing.assert_allclose(value, ours.tensors[index], atol=1e-5)
            if not mask[index]:
                np.testing.assert_array_equal(value, start[index])
        for index, (momentum,) in runner.slots.items():
            theirs = ours.optimizer.momentums[index]
            np.testing.assert_allclose(momentum, theirs, atol=1e-5)


def test_shares_that_do_not_suffice_for_the_head_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(Functions, "_converted", lambda *_: b"")  # takes most of the time
    model = elastic()
    ones = [1.0] * len(model.tensors)  # 0.7 of a step is forward, of which nothing is kept
    slow = TimingProfile.from_chain(t_dw=ones, t_dy=ones, t_forward=4.0 * len(ones))
    for k, (rhos, kept) in enumerate((((0.1, 0.2, 1.0), (1.0,)), ((0.1, 0.2), (0.2,)))):
        masks = litert(model, tmp_path / str(k), slow, rhos)
        told = json.loads((tmp_path / str(k) / "model.json").read_text())
        assert len(masks) == 1 and [plan["rho"] for plan in told["plans"]] == [*kept]
        assert masks[0][-2:].all()


@pytest.mark.parametrize(
    "model, options, said",
    [
        ({"loss": "mse"}, {}, "Received: 'mse'"),
        ({"loss": SCE()}, {}, "SparseCategoricalCrossentropy"),
        ({"end": [L.Conv2D(4, 3, padding="same", dilation_rate=2, name="wide")]}, {}, "wide"),
        ({"end": [L.Conv2DTranspose(4, 3, name="own")]}, {}, "own"),
        ({}, {"rhos": (1.0, 0.5)}, r"ascending. Received: \(1.0, 0.5\)"),
        ({}, {"rhos": ()}, r"one or more, ascending. Received: \(\)"),
        ({}, {"batch_size": 0}, "Received: 0"),
        ({}, {"class_names": ["one"]}, "each of 3 outputs. Received: 1"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path, model, options, said):
    model = elastic(**model)
    with pytest.raises(ValueError, match=said):
        litert(model, tmp_path / "out", chain(model), **options)
    assert not list(tmp_path.iterdir())


def test_a_softmax_is_written_as_the_logits_before_it(tmp_path):
    layers = [L.Input((2, 2, 1)), L.Flatten(), L.Dense(3), L.Softmax()]
    model = et.ElasticModel.from_model(tf.keras.Sequential(layers))
    model.compile("sgd", SCE())
    litert(model, tmp_path / "out", chain(model), (1.0,), batch_size=2)
    x = RNG.uniform(0, 255, (2, 2, 2, 1)).astype(np.float32)
    found = Trainer(tmp_path / "out", interpreter=tf.lite.Interpreter).predict(x)
    np.testing.assert_allclose(tf.nn.softmax(found), model(x), atol=1e-5)


def test_a_folder_that_is_there_is_not_touched(tmp_path):
    with pytest.raises(ValueError, match="new folder"):
        litert(elastic(), tmp_path)

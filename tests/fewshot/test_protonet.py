import few_images
import numpy as np
import pytest
import tensorflow as tf
from related import tinytrain
from related.tinytrain import batch

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.methods import fewshot, protonet
from elastic_tf.methods.protonet import ChannelFisher

L = tf.keras.layers


def test_loss_and_accuracy_of_a_batch_are_those_of_its_queries():
    task, net = few_images.task(), fewshot.ProtoNet(few_images.network())
    support, query = net.features(task.support), net.features(task.query)
    means = [support[task.support_labels == k].mean(0) for k in range(len(task.classes))]
    norm = np.linalg.norm
    expected = np.array([[10.0 * f @ c / norm(f) / norm(c) for c in means] for f in query])
    x, y = batch(*task[:4])
    order = np.random.default_rng(0).permutation(len(x))
    found = net.model.test_on_batch(x[order], y[order], return_dict=True)
    chances = tf.nn.log_softmax(expected).numpy()[np.arange(len(query)), task.query_labels]
    assert found["loss"] == pytest.approx(-chances.mean(), rel=1e-4)
    right = (expected.argmax(1) == task.query_labels).mean()
    assert found["accuracy"] == pytest.approx(right)


def test_a_classifier_is_taken_without_its_head():
    features = few_images.network()
    classifier = tf.keras.Model(features.input, L.Dense(3)(features.output))
    net = fewshot.ProtoNet.of(classifier)
    x = few_images.images()[0][:3]
    np.testing.assert_allclose(net.features(x), features(x), rtol=1e-3, atol=1e-6)
    assert fewshot.ProtoNet.of(net) is net


def test_maps_of_features_are_averaged():
    inputs = L.Input((8, 8, 1))
    net = fewshot.ProtoNet.of(tf.keras.Model(inputs, L.Conv2D(5, 3)(inputs)))
    assert net.model.output_shape == (None, 5)
    with pytest.raises(ValueError, match=r"\(None, 6, 6, 5\)"):
        fewshot.ProtoNet(tf.keras.Model(inputs, L.Conv2D(5, 3)(inputs)))


def test_batch_normalisation_keeps_its_statistics_unless_told_otherwise():
    x, y = batch(*few_images.task()[:4])
    for bn_training in (False, True):
        net = fewshot.ProtoNet(few_images.network(), bn_training=bn_training)
        buffers = [stack.raw(value) for value in net.model.non_trainable_weights]
        before = [value.numpy() for value in buffers]
        net.model.train_on_batch(x, y)
        after = [value.numpy() for value in buffers]
        same = all(np.array_equal(a, b) for a, b in zip(before, after))
        assert same is not bn_training


def test_a_model_whose_layers_are_not_known_is_refused():
    class Own(tf.keras.Model):
        """Calls a dense layer."""

    with pytest.raises(ValueError, match="of type Own"):
        fewshot.ProtoNet.of(Own())


class Stop(tf.keras.callbacks.Callback):
    """Ends a training as an interruption would."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == self.at:
            raise KeyboardInterrupt


@pytest.mark.hours  # a reproduction, apart from the package
def test_meta_training_goes_on_bit_for_bit(tmp_path, deterministic):
    tasks = tinytrain.episodes(few_images.images(), (3, 4), query=3, seed=1)

    def trained(directory, *callbacks):
        tf.keras.utils.set_random_seed(0)
        layers = [L.Input((8, 8, 1)), L.Flatten(), L.Dense(8), L.BatchNormalization()]
        net = fewshot.ProtoNet(tf.keras.Sequential(layers), bn_training=True)
        options = {"epochs": 2, "steps": 4, "learning_rate": 0.05, "verbose": 0}
        tinytrain.meta_train(net, tasks, directory=directory, callbacks=callbacks, **options)
        return [value.numpy() for value in net.model.weights]

    whole = trained(None)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, Stop(7))
    np.testing.assert_equal(whole, trained(tmp_path))


def accuracy(net, tasks):
    """By prototypes alone, mean of five episodes."""
    right = []
    for task in (tasks[k] for k in range(5)):
        found = fewshot.adapt(net, task.support, task.support_labels, steps=0)
        right.append(np.mean(found.predict(task.query) == task.query_labels))
    return np.mean(right)


@pytest.mark.hours
def test_meta_training_tells_new_classes_better():
    x, y = few_images.images(12, noise=2.0)
    known = y < 18
    net = fewshot.ProtoNet(few_images.network())
    tasks = tinytrain.episodes((x[~known], y[~known]), (4, 4), shots=3, query=5)
    before = accuracy(net, tasks)
    shown = tinytrain.episodes((x[known], y[known]), shots=3, query=5)
    adam = et.optimizers.adam(3e-3)
    tinytrain.meta_train(net, shown, epochs=1, steps=60, optimizer=adam, verbose=0)
    assert accuracy(net, tasks) > before + 0.05


def loss(features, y):
    return tf.reduce_sum((features - y[:, None]) ** 2, -1)


def by_definition(front, back, x, y):
    """Deltas where `front` ends, sample by sample."""
    found = 0.0
    for n in range(len(x)):
        with tf.GradientTape() as tape:
            a = front(x[n : n + 1], training=False)
            tape.watch(a)
            value = loss(back(a, training=False), y[n : n + 1])
        g = tape.gradient(value, a)
        found += tf.reduce_sum(a * g, axis=(0, 1, 2)).numpy() ** 2
    return found / (2 * len(x))


def parts(model, name):
    """The model up to a layer, and after it."""
    middle = model.get_layer(name).output
    inputs = x = L.Input(middle.shape[1:])
    at = model.layers.index(model.get_layer(name))
    for layer in model.layers[at + 1 :]:
        x = layer(x)
    return tf.keras.Model(model.input, middle), tf.keras.Model(inputs, x)


def test_deltas_are_those_of_the_definition(monkeypatch):
    monkeypatch.setattr(protonet, "_SAMPLES", 4)
    network = few_images.network()
    x = few_images.images()[0][:10]
    y = np.linspace(0.0, 1.0, 10, dtype=np.float32)
    model = et.ElasticModel.from_model(network)
    of_kind = [layer.name for layer in network.layers if isinstance(layer, L.ReLU)]
    kernels = [k for k, tensor in enumerate(model.tensors) if tensor.shape.rank == 4]
    found = ChannelFisher(model, loss, kernels)(x, y)
    assert list(found) == kernels
    for k, name in ((kernels[0], of_kind[0]), (kernels[-1], of_kind[-1])):
        np.testing.assert_allclose(found[k], by_definition(*parts(network, name), x, y), rtol=1e-4)


def test_a_depthwise_channel_sums_what_is_made_of_it():
    inputs = L.Input((4, 4, 3))
    x = L.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False)(inputs)
    model = et.ElasticModel(inputs, L.GlobalAveragePooling2D()(x))
    images = np.random.default_rng(0).normal(size=(1, 4, 4, 3)).astype(np.float32)
    found = ChannelFisher(model, loss, [0])(images, np.zeros(1, np.float32))[0]
    a = model(images).numpy()[0]  # the loss is the sum of squares: a * g = 2 a^2
    np.testing.assert_allclose(found, (2 * a**2).reshape(3, 2).sum(1) ** 2 / 2, rtol=1e-4)


def test_only_some_kernels_are_looked_at_and_what_is_not_finite_is_refused():
    model = et.ElasticModel.from_model(few_images.network())
    x, y = few_images.images()[0][:4], np.zeros(4, np.float32)
    last = max(k for k, tensor in enumerate(model.tensors) if tensor.shape.rank == 4)
    assert list(ChannelFisher(model, loss, (last,))(x, y)) == [last]

    infinite = np.full(4, np.inf, np.float32)
    with pytest.raises(ValueError, match=r"Received: .*nan"):
        ChannelFisher(model, loss, (last,))(x, infinite)

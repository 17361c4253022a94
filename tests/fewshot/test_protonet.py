import few_images
import numpy as np
import pytest
import tensorflow as tf
from related import tinytrain
from related.tinytrain import batch

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.methods import fewshot

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

"""What an elastic model refuses, and what it says."""

import warnings

import pytest
import tensorflow as tf
from networks import L, images, network
from training import OwnTrainStep, Subclassed

from elastic_tf.model import ElasticModel
from elastic_tf.train.engine import checks
from elastic_tf.train.engine.mixin import ElasticMixin


def test_a_mixin_behind_the_model_and_a_train_step_that_would_be_hidden_are_refused():
    with pytest.raises(TypeError, match=r"class Mine\(Subclassed, ElasticMixin\)\. Write elastic"):
        type("Mine", (Subclassed, ElasticMixin), {})
    with pytest.raises(TypeError, match="Mine, which inherits another one from OwnTrainStep"):
        type("Mine", (ElasticMixin, OwnTrainStep), {})
    further = type("Mine", (type("Logging", (), {}), ElasticMixin, Subclassed), {})
    assert further.train_step is ElasticMixin.train_step


def test_a_model_made_in_the_scope_of_a_strategy_is_refused():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = ElasticModel.from_model(network())
    with pytest.raises(TypeError, match="the scope of a MirroredStrategy. Leave the scope out"):
        model.compile("sgd", "mse")


@pytest.mark.parametrize("moved", [None, 0, 1])
def test_a_network_that_was_never_trained_is_told_of_and_no_other(moved):
    inputs = L.Input((6, 6, 2))
    x = L.BatchNormalization(center=False, scale=False)(L.Conv2D(4, 3, name="one")(inputs))
    model = tf.keras.Model(inputs, L.Dense(3, name="head")(L.Flatten()(x)))
    model.get_layer("head").bias.assign([1.0, 2.0, 3.0])  # as of a head that was solved
    if moved is not None:
        one = (model.get_layer("one").bias, model.layers[2].moving_mean)[moved]
        one.assign([0.0, 0.0, 0.5, 0.0])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        checks.warn_if_untrained(model)
    assert ["is trained yet" in str(one.message) for one in told] == [True] * (moved is None)


def test_several_optimizers_are_refused():
    with pytest.raises((TypeError, ValueError), match=r"of type List|\['sgd', 'adam'\]"):
        ElasticModel.from_model(network()).compile(["sgd", "adam"], "mse")


def test_a_batch_that_does_not_fit_is_named_and_the_reason_kept():
    error = tf.errors.InvalidArgumentError(None, None, "label 7")
    with pytest.raises(ValueError, match=r"x of shape \(20, 6, 6, 2\), y of shape \(20,\)") as seen:
        with checks.batch_explained(images()):
            raise error
    assert seen.value.__cause__ is error
    model, grey = ElasticModel.from_model(network()), tf.zeros((4, 6, 6, 1))
    with pytest.raises(ValueError, match=r"reason: .*have value 2, but received .*\(4, 6, 6, 1\)$"):
        with checks.batch_explained((grey, tf.zeros(4))):
            model(grey, training=True)

"""What an elastic model refuses, and what it says."""

import warnings

import pytest
import tensorflow as tf
from networks import L, images, network
from training import OwnTrainStep, Subclassed

from elastic_tf.model import ElasticModel
from elastic_tf.train.engine import checks
from elastic_tf.train.engine.mixin import ElasticMixin


def test_the_mixin_behind_the_model_is_refused():
    with pytest.raises(TypeError, match=r"class Mine\(Subclassed, ElasticMixin\)\. Write elastic"):

        class Mine(Subclassed, ElasticMixin):
            pass


def test_a_mixin_of_ones_own_may_be_mixed_in_further():
    class Logging:
        pass

    class Mine(Logging, ElasticMixin, Subclassed):
        pass

    assert Mine.train_step is ElasticMixin.train_step


def test_a_train_step_that_would_be_hidden_is_refused():
    with pytest.raises(TypeError, match="Mine, which inherits another one from OwnTrainStep"):

        class Mine(ElasticMixin, OwnTrainStep):
            pass


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
    told = warnings.catch_warnings() if moved is not None else pytest.warns(match="is trained yet")
    with told:
        warnings.simplefilter("error" if moved is not None else "always")
        checks.warn_if_untrained(model)


def test_several_optimizers_are_refused():
    with pytest.raises((TypeError, ValueError), match=r"of type List|\['sgd', 'adam'\]"):
        ElasticModel.from_model(network()).compile(["sgd", "adam"], "mse")


def test_a_batch_that_does_not_fit_is_named_and_the_reason_kept():
    error = tf.errors.InvalidArgumentError(None, None, "label 7")
    with pytest.raises(ValueError, match=r"x of shape \(20, 6, 6, 2\), y of shape \(20,\)") as seen:
        with checks.batch_explained(images()):
            raise error
    assert seen.value.__cause__ is error


def test_grey_images_for_a_network_of_colours_are_told_by_both_shapes():
    inputs = L.Input((8, 8, 3))
    model = ElasticModel(inputs, L.Flatten()(L.Conv2D(2, 3)(inputs)))
    with pytest.raises(ValueError, match=r"reason: .*have value 3, but received .*\(4, 8, 8, 1\)$"):
        with checks.batch_explained((tf.zeros((4, 8, 8, 1)), tf.zeros(4))):
            model(tf.zeros((4, 8, 8, 1)), training=True)

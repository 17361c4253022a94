from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from networks import SAMPLES, K, crossentropy, fit, images, values
from prunable import assert_close, block, branches, compiled, shrink

from elastic_tf import ElasticMixin, ElasticModel
from elastic_tf.baselines.prunetrain import group_lasso
from elastic_tf.baselines.prunetrain import model as prunetrain
from elastic_tf.baselines.prunetrain.model import PruneTrainCallback

PASS = (SAMPLES + 7) // 8  # steps of an epoch


class Shrink(tf.keras.callbacks.Callback):
    """Makes channels small at the end of an epoch, as a long training would."""

    def __init__(self, epoch=0):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            shrink(self.model.network, factor=1e-6)


def test_adapt_changes_no_output_and_shares_the_weights():
    model = branches()
    adapted = prunetrain.adapt(model)
    np.testing.assert_array_equal(adapted(images()[0]), model(images()[0]))
    assert {id(weight) for weight in adapted.weights} == {id(weight) for weight in model.weights}
    assert prunetrain.adapt(adapted) is adapted
    assert ElasticModel.from_model(adapted) is adapted


def test_adapt_takes_an_elastic_model():
    model = ElasticModel.from_model(block())
    adapted = prunetrain.adapt(model)
    assert not isinstance(adapted.network, ElasticMixin)
    np.testing.assert_array_equal(adapted(images()[0]), model(images()[0]))


def test_without_the_callback_it_trains_like_any_elastic_model(deterministic):
    ours, theirs = compiled(), ElasticModel.from_model(block())
    theirs.compile(K.SGD(0.05, momentum=0.9), crossentropy())
    assert fit(ours) == fit(theirs)
    assert values(ours.weights) == values(theirs.weights)


def test_the_first_step_sets_the_coefficient_to_the_ratio():
    model = compiled()
    x, y = images()
    loss = float(crossentropy()(y, model(x, training=True)))
    lasso = float(group_lasso.penalty(model.network, model.channels))
    fit(model, callbacks=[PruneTrainCallback(ratio=0.25)], batch_size=SAMPLES, epochs=3)
    np.testing.assert_allclose(model.lasso_coefficient, 0.25 / 0.75 * loss / lasso, rtol=1e-5)


def test_the_lasso_is_in_the_gradient_and_not_in_the_loss_shown():
    x, y = map(tf.constant, images())
    model = compiled(optimizer=K.SGD(1.0))
    model.use_lasso(0.5, coefficient=0.25)
    with tf.GradientTape() as tape:
        lasso = 0.25 * group_lasso.penalty(model.network, model.channels)
    of_lasso = tape.gradient(lasso, model.trainable_variables)
    step, both = model.gradients((x, y), model.trainable_variables)
    model.use_lasso(None)
    plain, of_loss = model.gradients((x, y), model.trainable_variables)
    np.testing.assert_allclose(step.loss, plain.loss + lasso, rtol=1e-6)
    for whole, one, other in zip(both, of_loss, of_lasso):
        np.testing.assert_allclose(whole, one + (0.0 if other is None else other), atol=1e-6)
    model.use_lasso(0.5, coefficient=0.25)
    shown = model.train_step((x, y))["loss"]
    np.testing.assert_allclose(shown, plain.loss, rtol=1e-6)


def test_regularisers_are_not_part_of_the_ratio():
    model = compiled(lambda: with_decay(block()))
    plain = compiled()
    for each in (model, plain):
        fit(each, callbacks=[PruneTrainCallback()], epochs=1)
    np.testing.assert_allclose(model.lasso_coefficient, plain.lasso_coefficient, rtol=1e-5)


def with_decay(model):
    for layer in model.layers:
        if hasattr(layer, "kernel_regularizer"):
            layer.kernel_regularizer = tf.keras.regularizers.L2(1e-2)
    again = tf.keras.models.clone_model(model)
    again.set_weights(model.get_weights())
    return again


def test_fit_goes_on_over_a_rebuild():
    rate = K.schedules.PolynomialDecay(0.05, 100)
    model = compiled(optimizer=K.SGD(rate, momentum=0.9), metrics=["accuracy"])
    optimizer, before = model.optimizer, model.count_params()
    callback = PruneTrainCallback(interval=2)
    history = fit(
        model,
        epochs=5,
        callbacks=[Shrink(1), callback],
        validation_data=images(seed=1),
    )
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy", "parameters"}
    assert history["parameters"][:2] == [before, before]
    assert history["parameters"][2:] == [model.count_params()] * 3
    assert model.count_params() < 0.8 * before
    assert model.optimizer is optimizer and int(optimizer.iterations) == 5 * PASS
    np.testing.assert_allclose(optimizer.learning_rate, rate(5 * PASS - 1), rtol=1e-6)


def test_reconfigure_changes_outputs_by_what_it_sets_to_zero_only():
    model = compiled()
    shrink(model.network, factor=1e-7)
    x = images()[0]
    before = model(x).numpy()
    assert model.reconfigure(1e-4) > 0
    assert_close(model(x), before)
    assert model.reconfigure(1e-4) == 0


def test_evaluation_and_prediction_use_the_rebuilt_network():
    model = compiled()
    x, y = images()
    before = model.predict(x, verbose=0), model.evaluate(x, y, verbose=0)
    shrink(model.network)
    between = model.predict(x, verbose=0), model.evaluate(x, y, verbose=0)
    model.reconfigure()
    assert np.abs(before[0] - between[0]).max() > 1e-3
    assert_close(model.predict(x, verbose=0), between[0])
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), between[1], rtol=1e-5)


def test_channels_that_must_stay_are_refused():
    model = compiled()
    sites = model.channels.sites
    with pytest.raises(ValueError, match=r"Received: all of 'stem' among 6 labels"):
        model.remove(sites["stem"].width[1].tolist())
    head = int(sites["head"].width[1][0])
    for label in (head, -1, len(model.channels.pinned)):
        with pytest.raises(ValueError, match=rf"Received: {label} among 1 labels"):
            model.remove([label])
    assert model.removed == []


def test_a_mask_stays_over_a_rebuild():
    model = compiled()
    mask = np.arange(len(model.tensors)) >= 3
    names = [tensor.name for tensor in model.tensors]
    model.set_mask(mask)
    shrink(model.network)
    model.reconfigure()
    assert [tensor.name for tensor in model.tensors] == names
    np.testing.assert_array_equal(model.mask, mask)
    before = values(model.tensors)
    fit(model)
    moved = [one != other for one, other in zip(values(model.tensors), before)]
    assert not any(moved[:3]) and any(moved[3:])


@pytest.mark.parametrize(
    "options, updates",
    [
        ({"accumulate": 2}, 5),  # in the first epoch 2: a rebuild does not wait for a batch to come
        ({"steps_per_execution": 2}, 3 * PASS),
    ],
)
def test_ways_to_run_steps_work_over_a_rebuild(options, updates):
    model = compiled(**options)
    fit(model, epochs=3, callbacks=[Shrink(), PruneTrainCallback(interval=1)])
    assert len(model.removed) >= 1
    assert int(model.optimizer.iterations) == updates


def test_moving_averages_end_in_the_rebuilt_weights():
    model = compiled(optimizer=K.Adam(1e-2, use_ema=True, ema_momentum=0.5))
    fit(model, epochs=3, callbacks=[Shrink(), PruneTrainCallback(interval=1)])
    averages = model.optimizer._model_variables_moving_average
    for average, variable in zip(averages, model.trainable_variables):
        np.testing.assert_array_equal(average.numpy(), variable.numpy())


def test_the_network_is_saved_with_its_architecture(tmp_path):
    model = compiled()
    shrink(model.network)
    model.reconfigure()
    x = images()[0]
    model.network.save(tmp_path / "pruned.keras")
    loaded = tf.keras.models.load_model(tmp_path / "pruned.keras")
    np.testing.assert_array_equal(loaded(x), model(x))
    model.network.save_weights(tmp_path / "pruned.weights.h5")
    same = tf.keras.Model.from_config(model.network.get_config())
    same.load_weights(tmp_path / "pruned.weights.h5")
    np.testing.assert_array_equal(same(x), model(x))


def test_nothing_of_the_larger_network_stays_in_memory():
    model = compiled()
    fit(model, epochs=1, callbacks=[PruneTrainCallback()])
    shrink(model.network)
    model.reconfigure()
    shrink(model.network)
    old = weakref.ref(model.network), weakref.ref(model.network.get_layer("one_a").kernel.handle)
    model.reconfigure()
    fit(model, epochs=1, callbacks=[PruneTrainCallback()])
    gc.collect()
    assert [reference() for reference in old] == [None, None]


class Interrupted(Exception):
    pass


class Interrupt(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 4:
            raise Interrupted


def run(folder, *more):
    model = compiled(optimizer=K.Adam(1e-2))
    backup = tf.keras.callbacks.BackupAndRestore(str(folder), delete_checkpoint=False)
    fit(model, epochs=6, callbacks=[Shrink(1), PruneTrainCallback(interval=2), backup, *more])
    return model


def test_an_interrupted_fit_goes_on_with_the_smaller_network(tmp_path, deterministic):
    whole = run(tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(tmp_path / "broken", Interrupt())
    resumed = run(tmp_path / "broken")
    assert resumed.removed == whole.removed != []
    assert resumed.lasso_coefficient == pytest.approx(whole.lasso_coefficient, rel=1e-6)
    assert values(resumed.network.weights) == values(whole.network.weights)


def test_the_backup_of_another_model_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        run(tmp_path, Interrupt())
    model = compiled()
    model.remove(np.flatnonzero(shrink(model.network, 0.1)).tolist())
    backup = tf.keras.callbacks.BackupAndRestore(str(tmp_path))
    with pytest.raises(ValueError, match="rebuilt 1 times.*backup of another one, rebuilt 1"):
        fit(model, callbacks=[PruneTrainCallback(), backup])


class Silent(tf.keras.layers.Layer):
    def get_config(self):
        raise NotImplementedError


def test_a_layer_that_cannot_be_made_again_is_refused_whatever_it_says():
    inputs = tf.keras.Input((6, 6, 3))
    x = Silent()(tf.keras.layers.Conv2D(4, 3)(inputs))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(2)(tf.keras.layers.Flatten()(x)))
    with pytest.raises(TypeError, match=r"'silent\w*' of class Silent: NotImplementedError\(\)"):
        prunetrain.adapt(model)

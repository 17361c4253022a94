from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from networks import (
    CLASSES,
    MORE_OPTIMIZERS,
    SAMPLES,
    K,
    L,
    crossentropy,
    fit,
    images,
    step_flops,
)
from prunable import (
    NETWORKS,
    assert_close,
    block,
    branches,
    compiled,
    shrink,
)
from related import prunetrain
from related.prunetrain import PruneTrainCallback, groups, rebuild
from related.prunetrain.groups import channel_groups

from elastic_tf import ElasticMixin, ElasticModel, stack
from elastic_tf.app.zoo import models
from elastic_tf.train import optimizers

pytestmark = pytest.mark.hours  # a reproduction, apart from the package

PASS = (SAMPLES + 7) // 8  # steps of an epoch


class Shrink(tf.keras.callbacks.Callback):
    """Makes channels small at the end of an epoch, as a long training would."""

    def __init__(self, epoch=0):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            shrink(self.model.network, factor=1e-6)


def without(network, small):
    return rebuild.rebuilt(network, channel_groups(network), ~small)


@pytest.mark.parametrize("name", [*NETWORKS, "zoo"])
def test_a_rebuilt_network_computes_what_the_masked_one_does(name):
    if name == "zoo":
        network = models.build("mobilenet", classes=CLASSES, input_size=32, alpha=0.25)
        x = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 3)).astype(np.float32)
        channels = channel_groups(network)
        made = {name: site.width[1] for name, site in channels.sites.items() if site.width}
        assert len(made) == 1 + 13 + 1  # stem, 1x1 of each block, head
        assert [name for name in made if channels.pinned[made[name]].any()] == ["head"]
    else:
        network, x = NETWORKS[name](), images()[0]
    small = shrink(network)
    new, carried = without(network, small)
    assert new.count_params() < 0.9 * network.count_params()
    np.testing.assert_allclose(new(x), network(x), rtol=0, atol=1e-5 * np.abs(network(x)).max())
    for layer in network.layers:
        for old, fresh in zip(stack.weights(layer), stack.weights(new.get_layer(layer.name))):
            assert carried[id(fresh)].old is old
            np.testing.assert_array_equal(fresh, carried[id(fresh)].cut(old.numpy()))


def test_a_model_that_cannot_be_rebuilt_is_refused():
    with pytest.raises(TypeError, match="of class Sequential"):
        prunetrain.adapt(tf.keras.Sequential([L.Dense(3)]))
    inputs = L.Input((4,))
    with pytest.raises(ValueError, match="Received: '.*', where all belong"):
        prunetrain.adapt(tf.keras.Model(inputs, L.Dense(3)(inputs)))


def test_adapting_changes_no_output_and_shares_the_weights():
    model = ElasticModel.from_model(branches())
    adapted = prunetrain.adapt(model)
    np.testing.assert_array_equal(adapted(images()[0]), model(images()[0]))
    assert {id(weight) for weight in adapted.weights} == {id(weight) for weight in model.weights}
    assert not isinstance(adapted.network, ElasticMixin)
    assert prunetrain.adapt(adapted) is adapted
    assert ElasticModel.from_model(adapted) is adapted


def step(model, seed=0):
    x, _ = images(seed=seed)
    y = np.arange(len(x)) % CLASSES
    model.fit(x, y, batch_size=len(x), epochs=1, verbose=0, shuffle=False)


def slots_of(model):
    inner = optimizers.unwrapped(model.optimizer)
    return [rebuild.slots(inner, variable) for variable in stack.trainable(model)]


OPTIMIZERS = {**MORE_OPTIMIZERS, "fused": lambda: optimizers.adam(1e-2)}


def scalars_of(model):
    found = [variable.numpy() for variable in optimizers.state(model.optimizer)]
    return [value for value in found if np.ndim(value) == 0]


@pytest.mark.parametrize("kind", ["fused", "scaled"])
def test_training_goes_on_as_that_of_the_masked_model(kind):
    masked, smaller = (compiled(block, OPTIMIZERS[kind]()) for _ in range(2))
    for model in (masked, smaller):
        step(model)
        keep = ~shrink(model.network)
    before = [[slot.numpy() for slot in one] for one in slots_of(smaller)]
    scalars, channels = scalars_of(smaller), smaller.channels
    _, carried = rebuild.rebuilt(masked.network, channels, keep)
    smaller.reconfigure()

    np.testing.assert_array_equal(scalars_of(smaller), scalars)
    assert all(before)
    # layer by layer, as the weights of a network do not run
    order = [weight.name for layer in masked.network.layers for weight in stack.weights(layer)]
    names = dict(zip(order, (one.cut for one in carried.values())))
    for variable, was, now in zip(stack.trainable(smaller), before, slots_of(smaller)):
        assert len(was) == len(now)
        for old, slot in zip(was, now):
            np.testing.assert_array_equal(slot, names[variable.name](old) if old.shape else old)
    step(masked, seed=2)
    step(smaller, seed=2)
    assert int(smaller.optimizer.iterations) == 2
    # of the masked model only what is removed differs: a zero kernel behind an offset is trained
    for old, new in zip(stack.weights(masked.network), stack.weights(smaller.network)):
        assert_close(new.numpy(), names[old.name](old.numpy()))


def test_the_lasso_is_in_the_gradient_by_its_ratio_and_not_in_the_loss_shown():
    x, y = map(tf.constant, images())
    model = compiled(lambda: with_decay(block()), K.SGD(1.0))
    variables = stack.trainable(model)
    plain, of_loss = model.gradients((x, y), variables)
    loss = float(plain.loss) - float(tf.add_n(model.losses))  # regularisers are no part of it
    with tf.GradientTape() as tape:
        penalty = groups.penalty(model.network, model.channels)
    of_penalty = tape.gradient(penalty, variables)
    model.use_lasso(0.25)
    step, both = model.gradients((x, y), variables)
    factor = 0.25 / 0.75 * loss / float(penalty)
    np.testing.assert_allclose(step.loss, plain.loss + factor * penalty, rtol=1e-5)
    for whole, one, other in zip(both, of_loss, of_penalty):
        np.testing.assert_allclose(whole, one + (0 if other is None else factor * other), atol=1e-5)
    np.testing.assert_allclose(model.train_step((x, y))["loss"], plain.loss, rtol=1e-5)


def with_decay(model):
    for layer in model.layers:
        if hasattr(layer, "kernel_regularizer"):
            layer.kernel_regularizer = tf.keras.regularizers.L2(1e-2)
    again = tf.keras.models.clone_model(model)
    again.set_weights(model.get_weights())
    return again


def test_training_removes_channels_parameters_and_operations():
    """The lasso does it, no weight is touched by hand."""
    x, y = images()
    y = (x.mean(axis=(1, 2, 3)) > 1.0).astype(int)  # something to learn
    model = compiled(optimizer=K.SGD(0.03))
    flops = step_flops(model, x[:8], y[:8])
    callback = PruneTrainCallback(ratio=0.9, threshold=1e-2, interval=10)
    history = fit(model, x=x, y=y, epochs=40, callbacks=[callback])
    assert model.count_params() < 0.5 * history["parameters"][0]
    assert step_flops(model, x[:8], y[:8]) < 0.7 * flops
    assert history["loss"][-1] < history["loss"][0]


def test_fit_goes_on_over_a_rebuild():
    rate = K.schedules.PolynomialDecay(0.05, 100)
    model = compiled(optimizer=K.SGD(rate, momentum=0.9), metrics=["accuracy"])
    x, y = images()
    mask = np.arange(len(model.tensors)) >= 3
    model.set_mask(mask)
    before = model.count_params()
    callback = PruneTrainCallback(interval=2)
    history = fit(model, epochs=5, callbacks=[Shrink(1), callback], validation_data=(x, y))
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy", "parameters"}
    assert history["parameters"] == [before] * 2 + [model.count_params()] * 3
    assert model.count_params() < 0.8 * before
    assert int(model.optimizer.iterations) == 5 * PASS
    # Keras 2 tells the rate of the last step, Keras 3 that of the next one
    rates = [rate(5 * PASS - 1).numpy(), rate(5 * PASS).numpy()]
    assert float(model.optimizer.learning_rate) in rates
    np.testing.assert_array_equal(model.mask, mask)
    np.testing.assert_allclose(
        model.evaluate(x, y, verbose=0)[0], float(crossentropy()(y, model(x))), rtol=1e-5
    )


def test_nothing_of_the_larger_network_stays_in_memory():
    model = compiled()
    fit(model, epochs=1, callbacks=[PruneTrainCallback()])
    shrink(model.network)
    model.reconfigure()
    shrink(model.network, factor=0.0)

    def handle():
        return stack.raw(model.network.get_layer("one_a").kernel).handle

    old = weakref.ref(model.network), weakref.ref(handle())
    model.reconfigure()
    gc.collect()
    assert [reference() for reference in old] == [None, None]

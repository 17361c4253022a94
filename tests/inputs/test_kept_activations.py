"""What is kept of samples belongs to the weights that it was computed with."""

import numpy as np
import pytest
import tensorflow as tf
from small_networks import BATCH, chain, data, elastic

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.train.engine import prefix

pytestmark = pytest.mark.usefixtures("deterministic")
XLA = pytest.mark.skipif(not stack.IS_KERAS2, reason="Keras 3 has none where ops are deterministic")
NARROW, WIDE, WIDER = 4, 2, 0  # first trained tensor


class AtEpochs(tf.keras.callbacks.Callback):
    """Calls a function with the model at the beginning of each epoch that has one."""

    def __init__(self, *functions):
        super().__init__()
        self.functions = functions

    def on_epoch_begin(self, epoch, logs=None):
        if epoch < len(self.functions):
            self.functions[epoch](self.model)


class AtSteps(AtEpochs):
    """The same at the steps of the first epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.is_first = epoch == 0

    def on_train_batch_begin(self, batch, logs=None):
        if self.is_first and batch < len(self.functions):
            self.functions[batch](self.model)


def plan(first):
    return lambda model: model.set_mask(np.arange(len(model.tensors)) >= first)


def chosen(first, epochs=2):
    """As an ElasticCallback does."""

    def choose(model):
        plan(first)(model)
        model.cache_prefix(epochs)

    return choose


def moved(model):
    model.set_weights([weight + 0.1 for weight in model.get_weights()])


def nothing(model):
    pass


def trained(memory, callback, **options):
    x, y = data()
    model = elastic(chain)
    if options:
        model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(True), **options)
    plan(NARROW)(model)
    samples = et.Samples(x, y, batch_size=BATCH, memory=memory)
    history = model.fit(samples, epochs=4, verbose=0, callbacks=[callback]).history
    return model.get_weights(), history["loss"]


@pytest.mark.parametrize(
    ("callback", "options"),
    [
        (AtSteps(chosen(WIDER), chosen(NARROW), chosen(WIDER, 1), chosen(NARROW, 1)), {}),
        (AtSteps(plan(WIDER), plan(NARROW), plan(WIDE), plan(NARROW)), {}),
        pytest.param(AtEpochs(), {"jit_compile": True}, marks=XLA),  # nothing is kept
    ],
)
def test_it_is_dropped_when_the_weights_change(callback, options):
    kept, losses = trained(1 << 30, callback, **options)
    whole, expected = trained(0, callback, **options)
    assert losses == expected
    np.testing.assert_equal(kept, whole)


class Filled:
    """Counts how often activations are computed."""

    def __init__(self, monkeypatch):
        self.count, fill = 0, prefix.PrefixCache._fill

        def counted(cache, of):
            self.count += 1
            fill(cache, of)

        monkeypatch.setattr(prefix.PrefixCache, "_fill", counted)


def test_what_changed_at_the_beginning_of_an_epoch_is_computed_anew(monkeypatch):
    filled = Filled(monkeypatch)
    trained(1 << 30, AtEpochs(nothing, moved))
    assert filled.count == 2


@pytest.mark.parametrize(
    "callback", [AtEpochs(nothing, nothing), AtEpochs(lambda m: m.set_weights(m.get_weights()))]
)
def test_what_did_not_change_is_computed_once(callback, monkeypatch):
    filled = Filled(monkeypatch)
    trained(1 << 30, callback)
    assert filled.count == 1

"""What is kept of samples belongs to the weights that it was computed with."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from small_networks import BATCH, chain, data, elastic

import elastic_tf as et
from elastic_tf.engine import prefix

pytestmark = pytest.mark.usefixtures("deterministic")
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


def one_assigned(model):
    model.tensors[0].assign(0.5 * model.tensors[0])


def loaded(model):
    tf.train.Checkpoint(model=model).read(model.file).expect_partial()


def trained(memory, callback, *, path=None, epochs=4, first=NARROW, **options):
    x, y = data()
    model = elastic(chain)
    if options:
        model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(True), **options)
    plan(first)(model)
    if path is not None:
        moved(model)
        model.file = tf.train.Checkpoint(model=model).write(str(path / "some"))
    samples = et.Samples(x, y, batch_size=BATCH, memory=memory)
    history = model.fit(samples, epochs=epochs, verbose=0, callbacks=[callback]).history
    return model.get_weights(), history["loss"]


CALLBACKS = [
    AtEpochs(plan(NARROW), plan(WIDER), plan(NARROW), plan(NARROW)),
    AtEpochs(chosen(WIDE), chosen(NARROW), chosen(WIDER), chosen(NARROW)),
    AtEpochs(nothing, nothing, moved),
    AtEpochs(nothing, one_assigned, nothing, one_assigned),
    AtEpochs(nothing, loaded),
    AtSteps(nothing, moved, nothing, one_assigned),
    AtSteps(chosen(WIDER), chosen(NARROW), chosen(WIDER, 1), chosen(NARROW, 1)),
]


@pytest.mark.parametrize(
    ("callback", "options"),
    [*((one, {}) for one in CALLBACKS), (CALLBACKS[-1], {"accumulate": 3})]
    + [(AtEpochs(), {"jit_compile": True})],  # of which nothing is kept
)
@pytest.mark.filterwarnings("ignore:Model doesn't support `jit_compile=True`:UserWarning")
def test_it_is_dropped_when_the_weights_change(callback, options, tmp_path):
    kept, losses = trained(1 << 30, callback, path=tmp_path, **options)
    whole, expected = trained(0, callback, path=tmp_path, **options)
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


@pytest.mark.parametrize("count", [2, 3])
def test_a_plan_set_in_the_last_steps_of_an_epoch_keeps_the_steps_of_an_execution(count):
    x, y = data()

    def steps(model, callback):
        before = model.optimizer.iterations.numpy()
        model.fit(
            x[:12], y[:12], batch_size=4, epochs=4, shuffle=False, verbose=0, callbacks=[callback]
        )
        return model.optimizer.iterations.numpy() - before, model.get_weights()

    class AtLast(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2 * (count == 2):
                plan(NARROW)(self.model)

    def made(several):
        model = elastic(chain)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, steps_per_execution=several)
        return model

    done, weights = steps(made(count), AtLast())
    expected, reference = steps(made(1), AtLast())
    assert done == expected == 12
    np.testing.assert_equal(weights, reference)

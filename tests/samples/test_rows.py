"""What is kept of samples belongs to the weights that it was computed with."""

import numpy as np
import pytest
import tensorflow as tf
from small_networks import BATCH, chain, data, elastic

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.train.engine import prefix

pytestmark = pytest.mark.usefixtures("deterministic")


def trained(memory, *acts, **options):
    """Weights and losses, where each epoch begins with the next act on the model."""

    def act(epoch, logs):
        if epoch < len(acts):
            acts[epoch](model)

    model = elastic(chain)
    if options:
        model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(True), **options)
    model.set_mask(np.arange(8) >= 4)
    samples = et.Samples(*data(), batch_size=BATCH, memory=memory)
    callbacks = [tf.keras.callbacks.LambdaCallback(on_epoch_begin=act)]
    history = model.fit(samples, epochs=4, verbose=0, callbacks=callbacks).history
    return model.get_weights(), history["loss"]


@pytest.mark.skipif(not stack.IS_KERAS2, reason="Keras 3 has none where ops are deterministic")
def test_nothing_is_kept_where_xla_compiles_the_steps():
    kept, whole = (trained(memory, jit_compile=True) for memory in (1 << 30, 0))
    np.testing.assert_equal(kept, whole)


def nothing(model):
    pass


def moved(model):
    model.set_weights([weight + 0.1 for weight in model.get_weights()])


def set_again(model):
    model.set_weights(model.get_weights())


@pytest.mark.parametrize(
    ("acts", "computed"), [((nothing, moved), 2), ((nothing, nothing), 1), ((set_again,), 1)]
)
def test_it_is_computed_anew_where_weights_changed_at_the_beginning_of_an_epoch(
    acts, computed, monkeypatch
):
    fills, fill = [], prefix.PrefixCache._fill
    monkeypatch.setattr(prefix.PrefixCache, "_fill", lambda *given: fills.append(fill(*given)))
    trained(1 << 30, *acts)
    assert len(fills) == computed

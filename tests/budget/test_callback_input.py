"""What the callback cannot work with: refused, or said."""

import dataclasses
import warnings

import numpy as np
import pytest
import tensorflow as tf
from chosen import callback, dataset, elastic, fit, table
from networks import L, crossentropy, images, network, values

from elastic_tf.callback import ElasticCallback
from elastic_tf.choose.budget.settings import Control, Deadline
from elastic_tf.choose.probe import Probe
from elastic_tf.model import ElasticModel
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.timing.profiler import profile_model


def profiled_at(size: int) -> tuple[ElasticModel, ElasticCallback]:
    """A model of images of any size, and a callback whose profile and probe are of one size."""
    inputs = L.Input((None, None, 2))
    pooled = L.GlobalAveragePooling2D()(L.Conv2D(4, 3, activation="relu")(inputs))
    model = ElasticModel(inputs, L.Dense(3)(pooled))
    model.compile("sgd", crossentropy())
    x, y = sized(size)
    return model, ElasticCallback(profile_model(model, x, y, repeats=3), rho=1.0, probe=(x, y))


def sized(size: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(8, size, size, 2)).astype(np.float32)
    return x, np.arange(8) % 3


def test_a_network_that_was_never_trained_is_told_of_where_a_part_is_trained():
    with pytest.warns(UserWarning, match="Nothing of .* is trained yet, and what is left out"):
        fit(elastic(), callback(rho=0.6), epochs=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Nothing of")
        fit(elastic(), callback(rho=1.0), epochs=1)


def test_frozen_layers_are_named_where_nothing_fits():
    base = network()
    before = [layer for layer in base.layers if layer.name not in ("head", "out")]
    for layer in before:
        layer.trainable = False
    model = ElasticModel.from_model(base)
    model.compile("sgd", crossentropy())
    t = np.ones(len(model.tensors))
    profile = TimingProfile.from_chain(t_dw=t, t_dy=t, t_forward=50.0)
    frozen = sum(1 for layer in before if layer.weights)
    said = f"too small to train.*{frozen} layers of .* are frozen, .*`trainable = True`.*compile"
    with pytest.raises(ValueError, match=said):
        model.fit(*images(), verbose=0, callbacks=[ElasticCallback(profile, rho=0.5)])


@pytest.mark.filterwarnings("ignore:No tensor is expected")
@pytest.mark.parametrize("shape", [(8, None, None, 2), (None, 6, 6, 2)])
def test_data_that_do_not_tell_their_size_are_taken(shape):
    model, elastic_callback = profiled_at(6)
    data = tf.data.Dataset.from_generator(
        lambda: iter([sized(6)]),
        output_signature=(tf.TensorSpec(shape), tf.TensorSpec((None,), tf.int64)),
    )
    model.fit(data, verbose=0, callbacks=[elastic_callback])
    assert len(elastic_callback.selections) == 1


@pytest.mark.filterwarnings("ignore:No tensor is expected")
def test_batches_of_several_sizes_are_trained_on():
    model, elastic_callback = profiled_at(6)
    spec = tf.TensorSpec((None, None, None, 2)), tf.TensorSpec((None,), tf.int64)
    sizes = [7, 9, 7, 8]
    data = tf.data.Dataset.from_generator(lambda: map(sized, sizes), output_signature=spec)
    data = data.apply(tf.data.experimental.assert_cardinality(len(sizes)))
    profile = elastic_callback.settings.profile
    seen = []

    def importance(model, x, y):
        seen.append(tuple(x.shape))
        return np.arange(len(model.tensors))

    several = ElasticCallback(profile, 1.0, probe=Probe(data, size=24), importance=importance)
    of_fit = ElasticCallback(profile, 1.0, probe=Probe(size=24), importance=importance)
    for one in (several, of_fit):
        before = model.get_weights()
        model.fit(data, epochs=2, shuffle=False, verbose=0, callbacks=[one])
        assert not np.array_equal(model.get_weights()[0], before[0])
    assert seen == [(16, 7, 7, 2)] * 2  # of the three batches drawn, the two of one size


def never(model, x, y):
    raise AssertionError("was evaluated")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probe": dataset().unbatch()}, "must yield batches"),
        ({"probe": (images()[0], images()[1][:5])}, "length 5, 20"),
        ({"probe": dataset().take(0)}, "an empty dataset"),
        ({"rho": 0.1, "importance": never}, "to train any tensor. .*smallest feasible rho is 0.4"),
        ({"rho": lambda epoch: 0.6 if epoch < 2 else 60}, "rho=60. The schedule .* for epoch 2"),
        ({"profile": table(9)}, "9 tensors, the model has 10"),
    ],
)
def test_what_cannot_be_kept_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fit(elastic(), callback(**options))


def test_two_callbacks_on_one_model_are_refused():
    with pytest.raises(ValueError, match="Received: two of them for '"):
        fit(elastic(), callback(), callback())


def test_plain_model_is_refused():
    model = network()
    model.compile("sgd", crossentropy())
    with pytest.raises(TypeError, match="Received: Functional"):
        model.fit(dataset(), verbose=0, callbacks=[callback()])


@pytest.mark.parametrize(
    ("data", "received", "probe"),
    [
        (lambda: {"x": images()[0], "y": images()[1], "batch_size": 5}, 5, images()),
        (lambda: dict(zip("xy", images())), 20, None),  # all, in one batch of Keras's 32
        (lambda: {"x": dataset().unbatch().batch(4, drop_remainder=True)}, 4, None),
    ],
)
def test_batches_of_another_size_than_the_profiled_one_are_refused(data, received, probe):
    profile = dataclasses.replace(table(), batch_size=8)
    elastic_callback = ElasticCallback(profile, 0.6, probe=probe)
    model = elastic()
    before = values(model.variables)
    with pytest.raises(ValueError, match=f"size 8, data of batch size {received}"):
        model.fit(**data(), verbose=0, callbacks=[elastic_callback])
    assert values(model.variables) == before


@pytest.mark.parametrize(
    ("make", "received"),
    [
        (lambda: callback(rho=1.7), "rho=1.7"),
        (lambda: callback(interval=0), "`interval` .* Received: 0"),
        (lambda: Deadline(0), "seconds=0"),
        (lambda: Deadline(float("nan")), "seconds=nan"),
        (lambda: Control(share=1.0), "share=1.0"),
    ],
)
def test_settings_outside_their_range_are_refused(make, received):
    with pytest.raises(ValueError, match=received):
        make()


def test_a_dataset_of_single_samples_is_not_taken_for_batches():
    with pytest.raises(ValueError, match=r"given batches. Received.*single.*dataset.batch\("):
        elastic().fit(dataset().unbatch(), epochs=1, callbacks=[callback()])

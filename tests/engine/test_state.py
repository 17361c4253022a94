"""What a model is after `fit`, however it ended, after `compile` and out of a file."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from networks import crossentropy, fit, images, mask_of, network, values
from training import UPPER, elastic, read_again

from elastic_tf.model import ElasticModel
from elastic_tf.plan import Plan
from elastic_tf.train import optimizers


class Careless(tf.keras.callbacks.Callback):
    """Sets a mask and wraps the train function, breaks off, and puts nothing back."""

    def __init__(self, error: type[BaseException] | None):
        super().__init__()
        self.error = error

    def on_train_begin(self, logs=None):
        assert self.model._elastic.callback is None
        self.model._elastic.callback = self

    def on_train_batch_end(self, batch, logs=None):
        self.model.set_mask(mask_of(self.model, "head/bias"))
        function = self.model.train_function
        self.model.train_function = lambda iterator: function(iterator)
        if batch and self.error:
            raise self.error


@pytest.fixture(scope="module")
def model():
    return elastic(kind="sgd")


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_a_fit_leaves_plan_and_train_function_as_they_were(model, error):
    fit(model)
    function = model.train_function
    with pytest.raises(error) if error else contextlib.nullcontext():
        fit(model, callbacks=[Careless(error)])
    assert model.plan == Plan.full(10)
    assert model.train_function is function
    before = values(model.tensors)
    fit(model)
    assert not [v.name for v, bits in zip(model.tensors, before) if v.numpy().tobytes() == bits]


def test_a_fit_whose_data_fail_leaves_the_plan(model):
    def batches():
        for _ in range(3):  # Keras 3 looks at two of them before
            yield tuple(part[:8] for part in images())
        raise OSError("gone")

    model.set_mask(mask_of(model, "head"))
    plan = model.plan
    with pytest.raises(tf.errors.OpError, match="gone"):
        model.fit(batches(), callbacks=[Careless(None)], verbose=0)
    assert model.plan == plan
    model.set_plan(None)


def test_compile_keeps_a_plan_unless_it_is_for_other_tensors_even_as_many():
    model = elastic()
    model.set_mask(mask_of(model, "head"))
    model.compile("sgd", crossentropy())
    assert np.flatnonzero(model.mask).tolist() == [8, 9]
    for trained, frozen in (("conv1", "conv2"), ("conv2", "conv1")):
        model.get_layer(trained).trainable = True
        model.get_layer(frozen).trainable = False
        model.compile("sgd", crossentropy())
        assert model.mask.tolist() == [True] * 8
        model.set_mask(mask_of(model, "head"))


@pytest.mark.parametrize(
    ("kind", "ending"),
    [("adam", ".weights.h5"), ("adamw", "checkpoint"), ("scaled_fused", ".keras")],
)
def test_training_goes_on_as_if_nothing_had_been_saved(kind, ending, tmp_path, deterministic):
    model, path = elastic(kind=kind), str(tmp_path / f"model{ending}")
    model.set_mask(mask_of(model, "head"))
    fit(model)
    model.set_mask(mask_of(model, *UPPER))
    again = read_again(model, lambda: elastic(kind=kind), path)
    assert model.mask.sum() == 4
    for one in (model, again):
        one.set_plan(None)
        fit(one)
    assert values(model.weights) == values(again.weights)
    counts = getattr(optimizers.unwrapped(again.optimizer), "missed_steps", None)
    if counts is not None:
        assert counts.numpy().tolist() == [6] * 8 + [0, 0]


def test_weights_in_a_file_are_those_of_a_plain_model_and_leave_the_plan_alone(tmp_path):
    model, path = elastic(), tmp_path / "some.weights.h5"
    fit(model)  # which makes the slots
    model.set_mask(mask_of(model, "head"))
    model.save_weights(path)
    model.load_weights(path)
    assert model.mask.sum() == 2
    plain = tf.keras.models.clone_model(model)
    plain.load_weights(path)
    assert values(plain.weights) == values(model.weights)


@pytest.mark.parametrize("kind", ["uncompiled.keras", "exported"])
def test_a_saved_model_is_loaded(kind, tmp_path):
    model, path, (x, _) = elastic(kind="scaled"), str(tmp_path / kind), images()
    if kind == "exported":
        fit(model)
        model.export(path)
        again = tf.saved_model.load(path)
        np.testing.assert_allclose(model(x), again.serve(x), rtol=1e-4, atol=1e-5)  # fused
        return
    model = ElasticModel.from_model(network())
    model.save(path)
    loaded = tf.keras.models.load_model(path)
    assert type(loaded) is ElasticModel
    assert values(loaded.weights) == values(model.weights)

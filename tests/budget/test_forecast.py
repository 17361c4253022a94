"""What three ways to adapt a network will take."""

import dataclasses
import random
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from clocks import table
from networks import crossentropy, images, network, values

import elastic_tf as et
from elastic_tf.choose import budget
from elastic_tf.timing.profile import CostItem


@pytest.fixture
def model():
    """Whose forward pass takes a second to trace."""
    model = et.ElasticModel.from_model(network())
    model.compile("adam", crossentropy())
    assert model.tensors
    model._elastic.tracing = 1.0
    return model


def batches(size=4):
    return tf.data.Dataset.from_tensor_slices(images()).batch(size)


def test_seconds_are_those_of_the_profile_and_of_tracing(model):
    """A full step takes a second, a third of it forward; five batches of four, six epochs."""
    found = et.forecast(model, batches(), rho=0.6, epochs=6, profile=table())
    head = 1.2 * 5 / 3 + 1.0  # half of tracing a step of the head
    # beside the forward pass, 8 of 30 are left: the head's two tensors take 1 each, and their way
    # 2; the offset of the convolution before takes 1, and its way 3 more
    assert found.head.seconds == pytest.approx(head)
    assert found.elastic.tensors == 3
    beside = 4 + 1.2 * 5 / 3  # traces, and the head once more
    share = (10 + 3 + 5) / 30
    assert found.elastic.seconds == pytest.approx(head + 2 + 5 * share + 6 * 5 * share + beside)
    assert found.full.seconds == pytest.approx(7 + 6 * 5)
    assert (found.head.images, found.full.images, found.full.tensors) == (20, 120, 10)
    assert found.head.seconds < found.elastic.seconds < found.full.seconds
    assert found.head.memory < found.elastic.memory < found.full.memory
    assert "elastic, rho=0.6" in str(found) and "train everything" not in str(found)


@pytest.fixture
def unmeasured(monkeypatch):
    """Steps that take no memory, and are not traced to know it."""
    monkeypatch.setattr(budget.forecast, "step", lambda *_: SimpleNamespace(peak=0))


def test_full_training_that_is_about_as_quick_is_said(model, unmeasured):
    found = et.forecast(model, batches(), rho=1.0, epochs=6, profile=table())
    assert str(found).endswith("Full training is about as quick: train everything.")


def test_more_is_trained_in_the_same_time_where_activations_are_kept(model, unmeasured):
    prefix = tuple(CostItem(tuple(range(k + 1)), 1e6 / 30) for k in range(10))
    profile = dataclasses.replace(table(), prefix=prefix)
    samples = et.Samples(*images(), batch_size=4)

    def tensors(data=samples, epochs=6, **options):
        found = et.forecast(model, data, epochs=epochs, profile=profile, **options)
        return found.elastic.tensors

    assert tensors() == tensors(batches(), keeps=True) > tensors(batches())
    assert tensors(epochs=1) == tensors(keeps=False) == tensors(batches())
    assert tensors(et.Samples(*images(), batch_size=4, memory=0)) == tensors(batches())
    # the pass that computes them counts in the choice, as in a `fit`
    for epochs, views in ((2, 1), (3, 1), (4, 2), (6, 3), (2, 2)):
        given = et.Samples(*images(), batch_size=4, augment=lambda x, seed: x, views=views)
        filled = profile.with_cached_prefix(views / epochs) if epochs > views else profile
        plan = et.select_tensors(et.importance.depth(model), filled, 0.5, strategy="order").plan
        assert tensors(given, epochs=epochs) == plan.mask.sum()


def test_the_model_stays_as_it_is_and_foretells_its_own_times(model):
    def state():
        return values(model.variables), random.getstate(), str(np.random.get_state())

    before = state()
    found = et.forecast(model, et.Samples(*images(), batch_size=4), epochs=2)
    assert state() == before and model.plan.mask.all()
    assert 0.0 < found.head.seconds < found.elastic.seconds


@pytest.mark.parametrize(
    "data",
    [lambda: images(), lambda: batches().repeat(), lambda: batches().filter(lambda x, y: True)],
)
def test_data_that_do_not_tell_their_size_are_refused(model, data):
    with pytest.raises(ValueError, match=r"`data` must be et.Samples.*Received.*cardinality"):
        et.forecast(model, data())


@pytest.mark.parametrize(("options", "told"), [({"rho": 0.0}, "rho"), ({"epochs": 0}, "epochs")])
def test_arguments_out_of_range_are_refused(model, options, told):
    with pytest.raises(ValueError, match=f"`{told}`"):
        et.forecast(model, batches(), **options)

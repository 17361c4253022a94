"""Training on samples with numbers, with what never changes computed once."""

import gc
import subprocess
import sys
import warnings
import weakref

import numpy as np
import pytest
import tensorflow as tf
from small_networks import L, chain, data, elastic, regularised, skips_to_the_head, subclassed

import elastic_tf as et
from elastic_tf import Samples
from elastic_tf.timing.profile import CostItem
from elastic_tf.train.engine import prefix
from elastic_tf.train.engine.rows import RowTraining
from elastic_tf.train.samples import Growing

pytestmark = pytest.mark.usefixtures("deterministic")


def flipped(x, seed):
    return x * tf.cast(tf.random.stateless_uniform((), seed) > 0.5, tf.float32)


def trained(build, samples, plan, epochs=3):
    model = elastic(build)
    model.set_mask(np.arange(len(model.tensors)) >= plan)
    history = model.fit(samples, epochs=epochs, verbose=0)
    return model, history.history


def assert_alike(build, plan, memory=1 << 30, **options):
    """What is kept changes neither weights nor history."""
    results = []
    for few in (memory, 0):
        samples = Samples(*data(), batch_size=4, memory=few, **options)
        model, history = trained(build, samples, plan)
        results.append((model.get_weights(), history))
    np.testing.assert_equal(*results)


def attending():
    """Attention makes layers of its own when it is called first, dropout among them."""
    inputs = L.Input((8,))
    x = L.Reshape((4, 2))(inputs)
    x = L.MultiHeadAttention(2, 3)(x, x)
    return tf.keras.Model(inputs, L.Dense(3)(L.Dense(4)(L.Flatten()(x))))


def own_step():
    class OwnStep(et.ElasticMixin, tf.keras.Sequential):
        def train_step(self, batch):
            variables = [v for v, on in zip(self.tensors, self.mask) if on]
            step, gradients = self.gradients(batch, variables)
            et.optimizers.apply_selected(self.optimizer, gradients, variables)
            return self.finish(step)

    return OwnStep([L.Input((8,)), L.Dense(6, "relu"), L.Dense(3)])


@pytest.mark.parametrize(
    ("build", "plan", "memory"),
    [
        (chain, 4, 1),
        (skips_to_the_head, 4, 1),  # a cut of two tensors
        (regularised, 2, 1 << 30),
        (subclassed, 4, 1 << 30),
        (attending, 8, 1 << 30),
        (own_step, 2, 1 << 30),
    ],
)
def test_cached_training_is_bit_identical(build, plan, memory):
    assert_alike(build, plan, memory=memory, augment=flipped, views=2)


def mixing():
    inputs = L.Input((8,))
    x = L.Lambda(lambda x: x - tf.reduce_mean(x, axis=0))(inputs)
    return tf.keras.Model(inputs, L.Dense(3)(L.Dense(4)(x)))


def noisy():
    inputs = L.Input((8,))
    return tf.keras.Model(inputs, L.Dense(3)(L.Dense(4)(L.Dropout(0.5, seed=0)(inputs))))


def twice():
    class Twice(et.ElasticMixin, tf.keras.Sequential):
        def train_step(self, data):
            self(tf.reverse(data[0], axis=[1]), training=True)
            return super().train_step((data[0] + self(data[0])[:, :1], data[1]))

    return Twice([L.Input((8,)), L.Dense(6), L.Dense(3)])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (mixing, "whole forward pass: .* differs from batch to batch"),
        (noisy, "at random"),
        (twice, "does not run the model's forward pass as it is"),
    ],
)
def test_where_nothing_can_be_kept_steps_run_whole_and_it_is_said(build, message):
    with pytest.warns(UserWarning, match=message):
        assert_alike(build, 2)


def test_weights_and_datasets_of_single_samples_are_served():
    x, y = data()
    weight = np.linspace(0.0, 1.0, 16).astype(np.float32)
    single = tf.data.Dataset.from_tensor_slices((x, y, weight))
    one, _ = trained(chain, Samples(x, y, sample_weight=weight, batch_size=4), 4)
    two, _ = trained(chain, Samples(single, batch_size=4), 4)
    np.testing.assert_equal(one.get_weights(), two.get_weights())


def test_what_is_kept_is_computed_in_batches_of_the_size_that_is_asked_for(monkeypatch):
    sizes, make = [], prefix.Forward.__init__
    monkeypatch.setattr(
        prefix.Forward, "__init__", lambda *given: sizes.append(given[2].shape[0]) or make(*given)
    )
    for asked in (4, 64):
        trained(chain, Samples(*data(), batch_size=4, cache_batch=asked), 4)
    assert sizes == [4, 16]


def test_samples_and_what_was_computed_of_them_are_freed():
    samples = Samples(*data(), batch_size=4)
    model, _ = trained(chain, samples, 4)
    freed = weakref.ref(samples)
    del samples
    gc.collect()
    assert freed() is None and model.built


def of_equal_layers():
    layers = [L.Dense(8, "relu") for _ in range(3)]
    return tf.keras.Sequential([L.Input((8,)), *layers, L.Dense(3)])


def test_a_cut_that_moves_is_computed_from_the_one_before(monkeypatch):
    calls, make = [], prefix.PrefixCache.__init__
    monkeypatch.setattr(
        prefix.PrefixCache, "__init__", lambda *given: calls.append(given[4]) or make(*given)
    )
    results = []
    for memory in (1 << 30, 0):
        model = elastic(of_equal_layers)

        def move(epoch, logs, model=model):
            model.set_mask(np.arange(len(model.tensors)) >= (2, 4, 2, 3)[epoch])
            model.cache_prefix(2)

        callbacks = [tf.keras.callbacks.LambdaCallback(on_epoch_begin=move)]
        samples = Samples(*data(), batch_size=4, memory=memory)
        history = model.fit(samples, epochs=4, callbacks=callbacks, verbose=0).history
        results.append((history, model.get_weights()))
    np.testing.assert_equal(*results)
    assert [before is not None for before in calls] == [False, True, False, True]


def test_epochs_are_counted_wherever_they_stand_among_the_arguments():
    model = elastic(chain)
    model.set_mask(np.arange(len(model.tensors)) >= 4)
    history = model.fit(Samples(*data(), batch_size=4), None, None, 2, 0, [Served()])
    assert history.history["served"] == [True, True]


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_a_fit_on_inputs_that_are_not_finite_says_which(kind):
    model = et.ElasticModel.from_model(tf.keras.Sequential([L.Input((8,)), L.Dense(1)]))
    model.compile("sgd", "mse")
    x, y = np.full((40, 8), 6e4, kind), np.zeros((40, 1))  # their sum is infinite in float16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(et.Samples(x, y), epochs=1, verbose=0)
    x[[3, 30], 2] = np.nan, np.inf
    with pytest.warns(UserWarning, match=r"in 2 of 40 samples, the first of them x\[3\]"):
        model.fit(et.Samples(x, y), epochs=1, verbose=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "0"),
        ({"views": 2}, "views=2"),
        ({"seed": -1}, "-1"),
        ({"y": None}, r"`y` must be .* first. Received: none\.$"),
    ],
)
def test_options_out_of_range_and_missing_targets_are_refused(options, message):
    given = {**dict(zip("xy", data())), "batch_size": 4, **options}
    with pytest.raises(ValueError, match=message):
        Samples(given.pop("x"), **given)


class Served(tf.keras.callbacks.Callback):
    """Whether the steps take cached activations, at the end of each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        state = self.model._elastic
        logs["served"] = state.rows.kept(self.model._trained(state.plan)) is not None


def test_selection_knows_what_a_cached_prefix_saves():
    forward = [CostItem(tuple(range(k + 1)), 4.0) for k in range(8)]  # most of the step
    items = tuple(CostItem((k,), 1.0) for k in range(8))
    profile = et.TimingProfile(t_forward=33.0, items=items, count=8, prefix=tuple(forward))
    options = {"rho": 0.6, "control": et.Control(share=0.0)}
    with pytest.raises(ValueError, match="forward pass alone takes 0.80.*et.Samples"):
        elastic(chain).fit(*data(), 4, callbacks=[et.ElasticCallback(profile, **options)])
    options["importance"] = et.importance.loss_decrease
    model, callback = elastic(chain), et.ElasticCallback(profile, interval=2, **options)
    samples = Samples(*data(), batch_size=4)
    history = model.fit(samples, epochs=5, callbacks=[callback, Served()], verbose=0).history
    assert history["served"] == [True] * 5
    for number, record in enumerate(callback.selections):
        first = int(record.mask.argmax())
        steps = 1.0 + 4.0 * (8 - first) + record.mask.sum()
        assert record.predicted_ratio == pytest.approx(steps / 41.0)
        assert record.selection.time <= 0.6 * 41.0
        if not number:  # half as many passes fill it as take it
            assert record.selection.time == pytest.approx(steps + 0.5 * 4.0 * first)


def test_filling_costs_a_pass_for_each_view():
    samples = Samples(*data(), batch_size=4, augment=flipped, views=2)
    rows = RowTraining(elastic(chain), samples)
    assert rows.fill_cost(5) == pytest.approx(0.4)
    assert not rows.keeps(2) and rows.fill_cost(2) == 1.0  # nothing is kept for one pass of each


CLASS_WEIGHT = {0: 0.5, 2: 3.0, 1: 1.0}
CLASSES = np.array([2, 0, 1, 1])


def of_steps(classes):
    """One-hot targets of three time steps, the first of them of these classes."""
    return np.eye(3)[np.stack([classes, classes * 0, classes * 0 + 2], axis=1)]


@pytest.mark.parametrize("sample_weight", [None, np.array([1.0, 2.0, 4.0, 8.0], np.float32)])
@pytest.mark.parametrize(
    "targets", [np.asarray, lambda c: c[:, None] + 0.2, lambda c: np.eye(3)[c], of_steps]
)
def test_class_weights_multiply_those_of_the_samples(targets, sample_weight):
    samples = Samples(data()[0][:4], targets(CLASSES), sample_weight=sample_weight, batch_size=2)
    before = samples.arrays
    x, y, found = samples.weighted(CLASS_WEIGHT).arrays
    expected = np.array([3.0, 0.5, 1.0, 1.0], np.float32)
    if targets is of_steps:
        expected = np.stack([expected, expected * 0 + 0.5, expected * 0 + 3.0], axis=1)
    if sample_weight is not None:
        expected = (expected.T * sample_weight).T
    assert found.dtype == tf.float32
    np.testing.assert_array_equal(found, expected)
    assert x is before[0] and y is before[1] and samples.arrays is before


@pytest.mark.parametrize("weights", [{0: 1.0, 1: 2.0}, {0: 1.0, 2: 2.0}, [1.0]])
def test_a_class_without_a_weight_is_refused(weights):
    said = r"classes up to 2|numbered from 0.*for|a dict of weights by class"
    with pytest.raises((ValueError, TypeError), match=said) as refused:
        Samples(data()[0][:4], CLASSES, batch_size=2).weighted(weights)
    assert str(weights) in str(refused.value)


PEAK = """
import elastic_tf as et
import numpy as np, resource, tensorflow as tf

def read(count):
    one = np.ones((32, 32, 4), np.float32)
    numbers = tf.data.Dataset.range(count)
    return et.Samples(numbers.map(lambda k: (one + tf.cast(k, tf.float32), k))).arrays[0]

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

read(1_000)
before = peak()
x = read(10_000)
print((peak() - before) / (x.shape.num_elements() * 4))
"""


@pytest.mark.hours
@pytest.mark.skipif(sys.platform != "linux", reason="other systems may copy an array that grows")
def test_a_dataset_takes_little_more_memory_than_its_samples():
    made = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert 0.9 < float(made.stdout) < 1.2


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool", "string"])
@pytest.mark.parametrize("shape", [(), (3,), (40, 50), (2, 0)])
def test_batches_become_what_they_are_together(dtype, shape):
    rng = np.random.default_rng(0)
    parts = [tf.cast(rng.normal(size=(n, *shape)) > 0.0, tf.int64) for n in (5, 200, 1, 300)]
    parts = [tf.as_string(p) if dtype == "string" else tf.cast(p, dtype) for p in parts]
    grown = Growing(parts[0])
    for part in parts:
        grown.add(part)
    found, expected = grown.tensor(), tf.concat(parts, 0)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert tf.reduce_all(found == expected)


def test_samples_stay_as_they_were_when_the_arrays_they_came_from_change():
    whole = np.ones(1_000 + 16, np.float32)
    start = -whole.ctypes.data % 64 // 4  # an address at which TensorFlow could share it
    x = whole[start : start + 1_000].reshape(100, 10)
    samples = Samples(x, np.zeros(100))
    x[:] = 2.0
    assert (samples.arrays[0].numpy() == 1.0).all()


@pytest.mark.parametrize("sizes", [(2, 3), (*[3] * 64, 2)])  # in the first batch, and after it
def test_samples_of_several_sizes_are_refused(sizes):
    spec = tf.TensorSpec((None,)), tf.TensorSpec((), tf.int64)
    data = tf.data.Dataset.from_generator(
        lambda: ((np.zeros(size), 0) for size in sizes), output_signature=spec
    )
    with pytest.raises(ValueError, match="sizes that differ, in .*Resize or pad them"):
        Samples(data, batch_size=2)
    with pytest.raises(ValueError, match=r"RaggedTensor of shape \(2, None\). Pad them"):
        Samples(tf.ragged.constant([[1.0, 2.0], [3.0]]), np.zeros(2), batch_size=2)

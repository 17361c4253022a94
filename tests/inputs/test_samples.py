"""Training on samples with numbers, with what never changes computed once."""

import gc
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

pytestmark = pytest.mark.usefixtures("deterministic")


def flipped(x, seed):
    return x * tf.cast(tf.random.stateless_uniform((), seed) > 0.5, tf.float32)


def trained(build, samples, plan, epochs=3):
    model = elastic(build)
    model.set_mask(np.arange(len(model.tensors)) >= plan)
    history = model.fit(samples, epochs=epochs, verbose=0)
    return model, history.history


def assert_alike(build, plan, x=None, **options):
    """What is kept changes neither weights nor history."""
    (own, y), results = data(), []
    for memory in (options.pop("memory", 1 << 30), 0):
        samples = Samples(own if x is None else x, y, batch_size=4, memory=memory, **options)
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
    ("build", "message", "options"),
    [
        (mixing, "whole forward pass: .* differs from batch to batch", {}),
        (noisy, "at random", {}),
        (twice, "does not run the model's forward pass as it is", {}),
    ],
)
def test_where_nothing_can_be_kept_steps_run_whole_and_it_is_said(build, message, options):
    with pytest.warns(UserWarning, match=message):
        assert_alike(build, 2, **options)


def test_every_epoch_has_its_own_order_of_all_samples_and_the_next_view():
    x, y = data()
    batches = Samples(x, y, batch_size=4, augment=flipped, views=2).row_batches()
    epochs = [np.concatenate([rows.numbers.numpy() for rows in batches]) for _ in range(3)]
    assert [sorted(rows % 16) == list(range(16)) for rows in epochs] == [True] * 3
    assert [set(rows // 16) for rows in epochs] == [{0}, {1}, {0}]
    assert not np.array_equal(epochs[0], epochs[2])


def test_a_view_is_the_same_each_time():
    samples = Samples(*data(), batch_size=4, augment=flipped, views=3)
    rows = tf.range(48, dtype=tf.int64)
    one, two = samples.take(rows)[0], samples.take(rows)[0]
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one[:16], one[16:32])


def test_weights_and_datasets_of_single_samples_are_served():
    x, y = data()
    weight = np.linspace(0.0, 1.0, 16).astype(np.float32)
    single = tf.data.Dataset.from_tensor_slices((x, y, weight))
    one, _ = trained(chain, Samples(x, y, sample_weight=weight, batch_size=4), 4)
    two, _ = trained(chain, Samples(single, batch_size=4), 4)
    np.testing.assert_equal(one.get_weights(), two.get_weights())


def test_what_is_kept_is_computed_in_batches_of_the_size_that_is_asked_for(monkeypatch):
    sizes = []
    make = prefix.Forward.__init__

    def noted(self, model, spec):
        sizes.append(spec.shape[0])
        make(self, model, spec)

    monkeypatch.setattr(prefix.Forward, "__init__", noted)
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
    layers = [tf.keras.layers.Dense(8, "relu") for _ in range(3)]
    return tf.keras.Sequential([tf.keras.layers.Input((8,)), *layers, tf.keras.layers.Dense(3)])


def test_a_cut_that_moves_is_computed_from_the_one_before(monkeypatch):
    calls = []
    make = prefix.PrefixCache.__init__
    monkeypatch.setattr(
        prefix.PrefixCache, "__init__", lambda *given: calls.append(given[4]) or make(*given)
    )
    x, y = data()

    def train(memory):
        model = elastic(of_equal_layers)
        firsts = iter([2, 4, 2, 3])
        move = tf.keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: (
                model.set_mask(np.arange(len(model.tensors)) >= next(firsts)),
                model.cache_prefix(2),
            )
        )
        samples = Samples(x, y, batch_size=4, memory=memory)
        history = model.fit(samples, epochs=4, callbacks=[move], verbose=0).history
        return history, model.get_weights()

    (cached, weights), (whole, same) = train(1 << 30), train(0)
    assert cached == whole
    np.testing.assert_equal(weights, same)
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


def test_missing_targets_are_taken_for_no_single_sample():
    with pytest.raises(ValueError, match=r"`y` must be .* first. Received: none\.$"):
        Samples(data()[0], batch_size=4)


@pytest.mark.parametrize(
    "options, message", [({"batch_size": 0}, "0"), ({"views": 2}, "views=2"), ({"seed": -1}, "-1")]
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Samples(*data(), **{"batch_size": 4, **options})


class Served(tf.keras.callbacks.Callback):
    """Whether the steps take cached activations, at the end of each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        state = self.model._elastic
        logs["served"] = state.rows.kept(self.model._trained(state.plan)) is not None


def with_forward_items():
    """A profile of `chain` whose forward pass is most of the step."""
    forward = [CostItem(tuple(range(k + 1)), 4.0) for k in range(8)]
    items = [CostItem((k,), 1.0) for k in range(8)]
    return et.TimingProfile(t_forward=33.0, items=tuple(items), count=8, prefix=tuple(forward))


def test_selection_knows_what_a_cached_prefix_saves():
    profile, options = with_forward_items(), {"rho": 0.6, "control": et.Control(share=0.0)}
    with pytest.raises(ValueError, match="forward pass alone takes 0.80.*et.Samples"):
        elastic(chain).fit(*data(), 4, callbacks=[et.ElasticCallback(profile, **options)])
    options["importance"] = et.importance.loss_decrease
    model, callback = elastic(chain), et.ElasticCallback(profile, interval=2, **options)
    samples = Samples(*data(), batch_size=4)
    history = model.fit(samples, epochs=5, callbacks=[callback, Served()], verbose=0).history
    assert history["served"] == [True] * 5
    for record, fill in zip(callback.selections, (0.5, 0.5, 1.0)):
        first = int(record.mask.argmax())
        steps = 1.0 + 4.0 * (8 - first) + record.mask.sum()
        assert record.predicted_ratio == pytest.approx(steps / 41.0)
        assert record.selection.time <= 0.6 * 41.0
        if record is callback.selections[0]:
            assert record.selection.time == pytest.approx(steps + fill * 4.0 * first)


def test_filling_costs_a_pass_for_each_view():
    rows = RowTraining(elastic(chain), Samples(*data(), batch_size=4))
    assert rows.fill_cost(5) == pytest.approx(0.2)
    assert rows.fill_cost(1) == 1.0  # nothing is kept for one pass


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


@pytest.mark.parametrize(
    "weights, message",
    [
        ({0: 1.0, 1: 2.0}, r"Received: \{0: 1.0, 1: 2.0\} for classes up to 2"),
        ({0: 1.0, 2: 2.0}, r"numbered from 0. Received: \{0: 1.0, 2: 2.0\} for"),
    ],
)
def test_a_class_without_a_weight_is_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        Samples(data()[0][:4], CLASSES, batch_size=2).weighted(weights)
    with pytest.raises(TypeError, match=r"a dict of weights by class.*\[1.0\]"):
        Samples(data()[0][:4], CLASSES, batch_size=2).weighted([1.0])

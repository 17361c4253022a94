"""From a model and its data to a head: what is promised of it, and what is refused."""

import contextlib
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from heads import SCE, classifier, clusters, solved
from networks import half_precision

from elastic_tf.train.head import features, solve
from elastic_tf.train.head.solve import AGAIN, BETWEEN, solve_between, solve_head
from elastic_tf.train.samples import Samples


@pytest.mark.parametrize("use_bias", [True, False])
def test_a_head_is_what_is_promised(use_bias):
    x, y = clusters(24)
    rng = np.random.default_rng(1)
    x, weight = x + 5.0 * rng.normal(size=4).astype(np.float32), rng.uniform(0.5, 2.0, 24)
    layers = [tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3, use_bias=use_bias)]
    model = tf.keras.Sequential(layers)
    model.compile("sgd", SCE(from_logits=True))
    found = solve_head(model, x, y, sample_weight=weight)
    right, wanted = np.zeros(24), np.eye(3)[y]
    for k in range(24):
        rest = np.arange(24) != k
        kernel, bias = solved(x[rest], wanted[rest], weight[rest], found.penalty, use_bias)
        right[k] = (x[k] @ kernel + bias).argmax() == y[k]
    assert found.accuracy == pytest.approx(np.average(right, weights=weight))
    kernel, bias = solved(x, wanted, weight, found.penalty, use_bias)
    expected = found.scale * (x @ kernel + bias)
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-3, atol=1e-4)


def test_classes_are_told_apart_and_nothing_else_changes():
    x, y = clusters()
    model = classifier()
    before = [value.copy() for value in model.get_weights()]
    found = solve_head(model, x, y)
    assert (model.predict(x, verbose=0).argmax(axis=1) == y).mean() > 0.9
    assert found.accuracy > 0.85 and found.samples == 60 and found.layer == model.layers[-1].name
    np.testing.assert_equal(before[:2], model.get_weights()[:2])
    assert not any("call" in vars(layer) for layer in model.layers)


def test_scale_makes_other_samples_likely():
    x, y = clusters()
    model = classifier()
    solve_head(model, x, y)
    others = clusters(400, seed=1)
    own = model.evaluate(*others, verbose=0)
    kernel, bias = model.layers[-1].get_weights()
    for factor in (0.3, 3.0):
        model.layers[-1].set_weights([factor * kernel, factor * bias])
        assert model.evaluate(*others, verbose=0) > own


def test_a_file_a_dataset_and_samples_give_the_same_head_as_arrays(monkeypatch):
    x, y = clusters(200)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)
    found = []
    for memory, *data in (
        (1 << 30, x, y),
        (1000, x, y),  # features in a file
        (1 << 30, dataset),
        (1 << 30, Samples(x, y, batch_size=3)),
    ):
        monkeypatch.setattr(solve, "_MEMORY", memory)
        model = classifier()
        solve_head(model, *data)
        found.append(model.layers[-1].get_weights())
    for other, rtol, atol in zip(found[1:], (1e-5, 1e-4, 1e-4), (0.0, 1e-6, 1e-6)):
        for one, two in zip(found[0], other):
            np.testing.assert_allclose(one, two, rtol=rtol, atol=atol)


def not_binary_crossentropy(y, y_pred):
    return tf.reduce_mean((y - y_pred) ** 2, axis=-1)


@pytest.mark.parametrize("loss", ["mse", not_binary_crossentropy])
def test_real_targets_are_regressed_unscaled(loss):
    x, _ = clusters()
    model = classifier(units=2, loss=loss)
    y = np.stack([x[:, 0] - 2 * x[:, 1], x[:, 2]], axis=1)
    found = solve_head(model, x, y)
    assert (found.scale, found.accuracy) == (1.0, None)
    assert model.evaluate(x, y, verbose=0) < y.var()


def test_one_unit_tells_two_classes():
    x, y = clusters(classes=2)
    model = classifier(units=1, activation="sigmoid", loss="binary_crossentropy")
    assert solve_head(model, x, y).accuracy > 0.85
    assert ((model.predict(x, verbose=0)[:, 0] > 0.5) == y).mean() > 0.85


def test_rare_classes_and_constant_features_are_served():
    x, y = clusters(classes=2)
    y[0] = 2  # of one sample; the fourth class has none
    model = classifier(units=4)
    assert np.isfinite(solve_head(model, x, y).accuracy)
    constant = solve_head(model, np.ones_like(x), y)
    assert np.isfinite(np.concatenate([v.ravel() for v in model.get_weights()])).all()
    assert constant.accuracy == pytest.approx(np.bincount(y).max() / len(y))


class Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.inside = classifier()

    def call(self, inputs):
        return self.inside(inputs)


def test_head_inside_a_subclassed_model_is_solved_in_full_precision():
    x, y = clusters()
    with half_precision():
        model = Subclassed()
    model(x)
    assert solve_head(model, x, y).accuracy > 0.85


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda x, y: (x, y + 5), "from 0 to 2.*from 5"),
        (lambda x, y: (x * np.nan, y), "finite.*nan"),
        (lambda x, y: (x, y[:-1]), "60 in x, 59 in y"),
    ],
)
def test_data_that_do_not_fit_are_refused_and_change_nothing(change, message):
    model = classifier(inside="tanh")  # a fused relu may make 0 of what is no number
    before = model.layers[-1].get_weights()
    with pytest.raises(ValueError, match=message):
        solve_head(model, *change(*clusters()))
    np.testing.assert_array_equal(before[0], model.layers[-1].get_weights()[0])


def test_a_layer_that_is_not_there_and_data_without_end_are_refused():
    with pytest.raises(ValueError, match="'top'.*'dense"):
        solve_head(classifier(), *clusters(), layer="top")
    data = tf.data.Dataset.from_tensor_slices(clusters()).batch(4).repeat()
    with pytest.raises(ValueError, match="cardinality -1"):
        solve_head(classifier(), data)


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", SCE(), None])
def test_losses_of_classes_are_told_by_what_they_are(loss):
    x, y = clusters()
    model = classifier(activation="softmax" if loss is None else None, loss=loss or "mse")
    is_wrong = pytest.warns(UserWarning, match="must take logits.*from_logits=True")
    with is_wrong if loss else contextlib.nullcontext():
        assert solve_head(model, x, y).accuracy > 0.85


class Seconds:
    """A clock that tells another second each time."""

    now = 0.0

    def perf_counter(self):
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(
    ("until", "batches", "views"), [(-9.0, 1, 1), (6.1, 3, 1), (6.3, 4, 2), (99.0, 9, 2)]
)
def test_a_head_is_there_in_time_and_has_seen_all_classes(monkeypatch, until, batches, views):
    """A batch a second from second 1 on, and another 0.3 for each to solve: 3 are read at 4 and
    solved for at 4.9, 4 at 6.2. The first one, which is traced, tells nothing of the second."""
    monkeypatch.setattr(features, "time", Seconds())
    x, y = clusters(550 // views)
    order = np.argsort(y, kind="stable")  # one class after the other
    options = {"augment": lambda x, key: x, "views": 2} if views == 2 else {}
    samples, model = Samples(x[order], y[order], batch_size=5, **options), classifier()
    found = solve_head(model, samples, until=until)
    assert found.samples == min(64 * batches, samples.rows)
    assert (model.predict(x, verbose=0).argmax(axis=1) == y).mean() > 0.8


@pytest.mark.parametrize("until", [None, 99.0])
def test_a_sample_is_left_out_with_its_views(until, monkeypatch):
    """Where views are copies, leaving one of them out would say nothing."""
    monkeypatch.setattr(features, "time", Seconds())
    x, y = clusters(60)
    y = np.random.default_rng(0).permutation(y)  # nothing to learn
    copies = Samples(x, y, batch_size=5, augment=lambda x, key: x, views=3)
    found = [
        solve_head(classifier(), given, until=until)
        for given in (Samples(x, y, batch_size=5), copies)
    ]
    assert found[1].accuracy == pytest.approx(found[0].accuracy, abs=0.1)
    assert found[1].penalty == pytest.approx(3 * found[0].penalty, rel=0.3)


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_weights_between_are_taken_where_held_out_samples_like_them_better(seed, is_ahead):
    x, y = clusters(seed=seed)
    model, samples = classifier(), Samples(x, y, batch_size=10)
    first = dataclasses.replace(solve_head(model, samples), error=np.inf)
    start, rng = model.get_weights(), np.random.default_rng(seed)
    last = [value + rng.normal(size=value.shape).astype(np.float32) for value in start]
    ways = []  # the weights that are looked at
    for way in (1.0, 0.6):
        one = classifier()
        one.set_weights([(1.0 - way) * a + way * b for a, b in zip(start, last)])
        solve_head(one, samples, scale=first.scale)
        ways.append(one.get_weights())
    model.set_weights(last)
    seen = []

    def judge():
        seen.append(model.get_weights())
        return {"loss": 1.0 - 0.5 * (is_ahead == (len(seen) == 2))}

    found = solve_between(model, samples, first, start, judge)
    assert found == (BETWEEN if is_ahead else AGAIN, {"loss": 0.5})
    for looked, expected in zip((*seen, model.get_weights()), (*ways, ways[is_ahead])):
        for one, other in zip(looked, expected):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("error", [0.0, np.inf])
def test_weights_between_that_are_not_worth_keeping_leave_the_last_ones(error):
    """Of errors above the first head's, and of features that are not finite."""
    x, y = clusters()
    model, samples = classifier(inside="linear"), Samples(x, y, batch_size=10)
    first = dataclasses.replace(solve_head(model, samples), error=error)
    start = [np.full_like(value, np.nan) for value in model.get_weights()]
    before = model.get_weights()
    found = solve_between(model, samples, first, start, lambda: {"loss": 1.0})
    assert found == ((AGAIN, {"loss": 1.0}) if error else None)
    for one, other in zip(model.get_weights()[: 2 if error else 0], before):
        np.testing.assert_array_equal(one, other)
    assert all(np.isfinite(value).all() for value in model.get_weights())

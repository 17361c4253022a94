"""The head in closed form: against solving the same problem anew without each sample."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from networks import half_precision

from elastic_tf.lite.ridge import Ridge
from elastic_tf.methods.baselines.fixed import TrainOnly
from elastic_tf.model import ElasticModel
from elastic_tf.train.head import features, solve
from elastic_tf.train.head.solve import SolveHead, begin, solve_head
from elastic_tf.train.inputs.samples import Samples

SCE = tf.keras.losses.SparseCategoricalCrossentropy


def solved(features, wanted, weight, penalty, intercept=True):
    """Kernel and bias by the normal equations, the intercept free."""
    share = intercept * weight / weight.sum()
    x, y = features - share @ features, wanted - share @ wanted
    gram = (x * weight[:, None]).T @ x + penalty * np.eye(x.shape[1])
    kernel = np.linalg.solve(gram, (x * weight[:, None]).T @ y)
    return kernel, share @ wanted - share @ features @ kernel


def problem(samples, width, outputs=3, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(samples, width))
    wanted = features[:, :outputs] + rng.normal(size=(samples, outputs))
    return features, wanted, rng.uniform(0.5, 2.0, samples)


def classifier(units=3, activation=None, loss=None, inside="relu"):
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((4,)),
            tf.keras.layers.Dense(16, inside),
            tf.keras.layers.Dense(units, activation),
        ]
    )
    model.compile("sgd", loss or SCE(from_logits=activation is None))
    return model


def clusters(samples=60, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, samples)
    return (np.eye(4)[y] * 3 + rng.normal(size=(samples, 4))).astype(np.float32), y


@pytest.mark.parametrize("samples, width", [(40, 6), (8, 20)])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("each", [1, 2, 4])
def test_weights_and_left_out_predictions_are_those_of_solving_anew(
    samples, width, intercept, each
):
    """The weights solve the normal equations; a group is left out as if it had not been there."""
    features, wanted, weight = problem(samples, width)
    features, wanted = features + 1.0, wanted - 2.0
    groups = np.random.default_rng(each).permutation(samples) // each
    given = {} if each == 1 else {"groups": groups}
    ridge = Ridge(features, wanted, weight, intercept=intercept, **given)
    kernel, bias = ridge.weights(0.7)
    expected_kernel, expected_bias = solved(features, wanted, weight, 0.7, intercept)
    np.testing.assert_allclose(kernel, expected_kernel, atol=1e-8)
    np.testing.assert_allclose(bias, expected_bias, atol=1e-8)
    assert bias.any() == intercept
    found = ridge.left_out(0.7)
    for k in range(samples):
        rest = groups != groups[k]
        kernel, bias = solved(features[rest], wanted[rest], weight[rest], 0.7, intercept)
        np.testing.assert_allclose(found[k], features[k] @ kernel + bias, atol=1e-8)


@pytest.mark.parametrize("use_bias", [True, False])
def test_a_head_is_what_is_promised(use_bias):
    x, y = clusters(24)
    rng = np.random.default_rng(1)
    x, weight = x + 5.0 * rng.normal(size=4).astype(np.float32), rng.uniform(0.5, 2.0, 24)
    tf.keras.utils.set_random_seed(0)
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


def test_penalty_has_the_least_left_out_error():
    features, wanted, weight = problem(30, 25)
    one = Ridge(features, wanted, weight)

    def error(penalty):
        return (weight[:, None] * (one.left_out(penalty) - wanted) ** 2).sum()

    best = one.best_penalty()
    assert all(error(best) <= 1.001 * error(best * factor) for factor in (0.3, 0.8, 1.25, 3.0))


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


def test_features_in_a_file_give_the_same_head(monkeypatch):
    x, y = clusters(200)
    weights = []
    for memory in (1 << 30, 1000):
        monkeypatch.setattr(solve, "_MEMORY", memory)
        model = classifier()
        solve_head(model, x, y)
        weights.append(model.layers[-1].get_weights())
    for one, two in zip(*weights):
        np.testing.assert_allclose(one, two, rtol=1e-5)


def test_dataset_and_samples_give_the_same_head_as_their_arrays():
    x, y = clusters()
    weights, samples = [], Samples(x, y, batch_size=3)
    for data in ((x, y), (tf.data.Dataset.from_tensor_slices((x, y)).batch(7),), (samples,)):
        model = classifier()
        solve_head(model, *data)
        weights.append(model.layers[-1].get_weights())
    for kernel, _ in weights[1:]:
        np.testing.assert_allclose(weights[0][0], kernel, rtol=1e-4, atol=1e-6)


def test_real_targets_are_regressed_unscaled():
    x, _ = clusters()
    model = classifier(units=2, loss="mse")
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


def test_names_of_classes_are_refused_in_a_fit():
    x, y = np.zeros((8, 4), np.float32), np.array(["a", "b"] * 4)
    model = ElasticModel.from_model(
        tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    )
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="Classes must be numbers.*return_inverse"):
        model.fit(Samples(x, y, batch_size=4), callbacks=[SolveHead()], verbose=0)


def test_a_layer_that_is_not_there_and_data_without_end_are_refused():
    with pytest.raises(ValueError, match="'top'.*'dense"):
        solve_head(classifier(), *clusters(), layer="top")
    with pytest.raises(ValueError, match="cardinality -1"):
        data = tf.data.Dataset.from_tensor_slices(clusters()).batch(4).repeat()
        solve_head(classifier(), data)


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", SCE(), None])
def test_losses_of_classes_are_told_by_what_they_are(loss):
    x, y = clusters()
    model = classifier(activation="softmax" if loss is None else None, loss=loss or "mse")
    is_wrong = pytest.warns(UserWarning, match="must take logits.*from_logits=True")
    with is_wrong if loss else contextlib.nullcontext():
        assert solve_head(model, x, y).accuracy > 0.85


def test_a_loss_named_as_one_of_classes_is_not_taken_for_it():
    def not_binary_crossentropy(y, y_pred):
        return tf.reduce_mean((y - y_pred) ** 2, axis=-1)

    x, _ = clusters()
    model = classifier(units=1, loss=not_binary_crossentropy)
    assert solve_head(model, x, x[:, 0]).scale == 1.0


def test_a_head_is_solved_on_all_views_whatever_is_kept(monkeypatch):
    def moved(x, key):
        return x + tf.random.stateless_normal(x.shape, key)

    (x, y), weight = clusters(20), np.random.default_rng(0).uniform(0.5, 2.0, 20)
    found = []
    for memory in (1 << 20, 0, None):
        samples = Samples(
            x, y, sample_weight=weight, batch_size=5, augment=moved, views=2, memory=memory
        )
        model = ElasticModel.from_model(classifier())
        model.compile(tf.keras.optimizers.SGD(0.0), SCE(from_logits=True))
        if memory is None:  # outside of `fit`
            found.append(solve_head(model, samples))
        else:
            callback = SolveHead(again=False)
            callbacks = [TrainOnly(np.arange(4) >= 2), callback]
            with monkeypatch.context() as patched:
                if memory:  # no input is looked at
                    patched.setattr(features, "_of_samples", None)
                model.fit(samples, epochs=4, verbose=0, callbacks=callbacks)
            found.append(callback.solution)
        rows = [samples.take(tf.range(start, start + 20, dtype=tf.int64)) for start in (0, 20)]
        given, y_rows, w_rows = (np.concatenate([part[k] for part in rows]) for k in range(3))
        given = model.layers[-2](given).numpy()
        wanted = np.eye(3)[y_rows.astype(int)]
        kernel, bias = solved(given, wanted, w_rows, found[-1].penalty)
        factor = found[-1].scale * (1.0 if memory is None else found[-1].start)
        got = model.layers[-1].get_weights()
        np.testing.assert_allclose(got[0], factor * kernel, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(got[1], factor * bias, rtol=1e-3, atol=1e-4)
        assert found[-1].samples == 40
        assert found[-1].accuracy == found[0].accuracy
        assert found[-1].penalty == pytest.approx(found[0].penalty, rel=1e-3)


def test_a_head_is_solved_at_the_beginning_of_a_fit_on_samples_alone():
    model = ElasticModel.from_model(classifier())
    model.compile("sgd", SCE(from_logits=True))
    with pytest.raises(TypeError, match="solve_head"):
        model.fit(*clusters(), verbose=0, callbacks=[SolveHead()])


@pytest.mark.parametrize("rate", [0.05, 30.0])
def test_a_head_is_solved_again_as_a_fit_ends_where_it_is_better(rate, deterministic):
    x, y = clusters()

    def trained(again):
        tf.keras.utils.set_random_seed(0)
        model = ElasticModel.from_model(classifier())
        model.compile(tf.keras.optimizers.SGD(rate), SCE(from_logits=True))
        samples, head = Samples(x, y, batch_size=10), SolveHead(again=again)
        model.fit(samples, epochs=3, verbose=0, callbacks=[head])
        return model, samples, head.solution

    model, samples, first = trained(again=False)
    expected = model.get_weights()
    is_better = np.isfinite(expected[0]).all()
    if is_better:
        is_better = solve_head(model, samples, scale=first.scale).error <= first.error
    assert is_better == (rate < 1.0)
    if is_better:
        expected = model.get_weights()
    for one, other in zip(trained(again=True)[0].get_weights(), expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "linear"])
def test_training_begins_as_unsure_of_its_samples_as_of_ones_left_out(kind):
    """The loss on them is then the one of leaving each out and solving anew."""
    x, y = clusters()
    x = x + np.random.default_rng(1).normal(size=x.shape, scale=2.0).astype(np.float32)
    if kind == "linear":
        y, loss = x[:, :3], "mse"
    elif kind == "sigmoid":
        y = np.eye(3)[y].astype(np.float32)
        loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    else:
        loss = SCE(from_logits=True)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    model = classifier(loss=loss)
    found = solve_head(model, x, y, sample_weight=weight)
    before = model.predict(x, verbose=0)
    begin(model, found)
    after = model.predict(x, verbose=0)
    np.testing.assert_allclose(after, found.start * before, rtol=1e-4, atol=1e-5)
    if kind == "linear":
        assert found.start == 1.0
        return
    assert 0.2 < found.start < 1.0
    each = type(loss)(from_logits=True, reduction="none")
    alone = np.empty_like(before)
    given = model.layers[-2](x).numpy()
    wanted = np.eye(3)[y] if kind == "softmax" else 2.0 * y - 1.0
    for k in range(len(y)):
        others = np.arange(len(y)) != k
        part = given[others], wanted[others], weight[others]
        kernel, bias = solved(*part, found.penalty)
        alone[k] = found.scale * (given[k] @ kernel + bias)
    expected = np.average(each(y, alone), weights=weight)
    assert np.average(each(y, after), weights=weight) == pytest.approx(expected, rel=0.01)


def test_averages_of_the_optimizer_start_from_the_solved_head():
    model = ElasticModel.from_model(classifier())
    optimizer = tf.keras.optimizers.SGD(0.0, use_ema=True)
    model.compile(tf.keras.mixed_precision.LossScaleOptimizer(optimizer), SCE(from_logits=True))
    x, y = clusters()
    model.fit(Samples(x, y, batch_size=10), verbose=0)  # the averages are there
    solved_head = classifier()
    solve_head(solved_head, x, y)
    model.fit(Samples(x, y, batch_size=10), epochs=2, verbose=0, callbacks=[SolveHead()])
    for one, other in zip(model.get_weights(), solved_head.get_weights()):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("intercept", [True, False])
def test_the_error_of_few_samples_with_many_features_is_exact_for_every_penalty(intercept):
    """Where the features explain every sample: against solving again without each of them."""
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(9, 30)), rng.normal(size=(9, 2))
    weight = rng.uniform(0.5, 2.0, 9)
    ridge = Ridge(features, targets, weight, intercept=intercept)
    for penalty in np.logspace(-8.5, 2.0, 8) * ridge.values[-1]:
        left_out = ridge.left_out(penalty)
        for k in range(9):
            others = np.arange(9) != k
            part = features[others], targets[others], weight[others]
            alone = Ridge(*part, intercept=intercept)
            kernel, bias = alone.weights(penalty)
            np.testing.assert_allclose(left_out[k], features[k] @ kernel + bias, rtol=1e-5)


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

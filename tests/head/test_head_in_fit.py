"""The head as a `fit` begins from it and ends with it."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from heads import SCE, classifier, clusters, solved

from elastic_tf.methods.baselines import TrainOnly
from elastic_tf.model import ElasticModel
from elastic_tf.train.head import features
from elastic_tf.train.head.solve import SolveHead, begin, solve_head
from elastic_tf.train.samples import Samples


def elastic(rate=0.05):
    tf.keras.utils.set_random_seed(0)
    model = ElasticModel.from_model(classifier())
    model.compile(tf.keras.optimizers.SGD(rate), SCE(from_logits=True))
    return model


def test_names_of_classes_and_what_is_no_samples_are_refused_in_a_fit():
    x, y = np.zeros((8, 4), np.float32), np.array(["a", "b"] * 4)
    with pytest.raises(ValueError, match="Classes must be numbers.*return_inverse"):
        elastic().fit(Samples(x, y, batch_size=4), callbacks=[SolveHead()], verbose=0)
    with pytest.raises(TypeError, match="solve_head"):
        elastic().fit(*clusters(), verbose=0, callbacks=[SolveHead()])


def test_a_head_is_solved_on_all_views_whatever_is_kept(monkeypatch):
    def moved(x, key):
        return x + tf.random.stateless_normal(x.shape, key)

    (x, y), weight = clusters(20), np.random.default_rng(0).uniform(0.5, 2.0, 20)
    found = []
    for memory in (1 << 20, 0, None):
        samples = Samples(
            x, y, sample_weight=weight, batch_size=5, augment=moved, views=2, memory=memory
        )
        model = elastic(rate=0.0)
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


@pytest.mark.parametrize("rate", [0.05, 30.0])
def test_a_head_is_solved_again_as_a_fit_ends_where_it_is_better(rate, deterministic):
    x, y = clusters()

    def trained(again):
        model = elastic(rate)
        samples, head = Samples(x, y, batch_size=10), SolveHead(again=again)
        model.fit(samples, epochs=3, verbose=0, callbacks=[head])
        return model, samples, head.solution

    model, samples, first = trained(again=False)
    expected, said = model.get_weights(), contextlib.nullcontext()
    is_better = np.isfinite(expected[0]).all()
    is_better = is_better and solve_head(model, samples, scale=first.scale).error <= first.error
    assert is_better == (rate < 1.0)
    if is_better:
        expected = model.get_weights()
    else:
        said = pytest.warns(UserWarning, match="larger leave-one-out error than before.*rate")
    with said:
        found = trained(again=True)[0].get_weights()
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_the_head_is_solved_on_the_weights_that_early_stopping_puts_back(deterministic):
    x, y = clusters()

    def trained(*callbacks):
        model, samples = elastic(), Samples(x, y, batch_size=10)
        options = {"epochs": 4, "verbose": 0, "validation_data": (x, y[::-1])}
        model.fit(samples, callbacks=[*callbacks], **options)
        return model.get_weights()

    def stop():
        options = {"patience": 1, "min_delta": 9.0, "restore_best_weights": True}
        return tf.keras.callbacks.EarlyStopping(**options)

    before, behind = trained(stop(), SolveHead()), trained(SolveHead(), stop())
    for one, other in zip(before, behind):
        np.testing.assert_array_equal(one, other)
    kept = trained(SolveHead(again=False), stop())
    assert all((one == other).all() for one, other in zip(kept[:-2], behind))
    assert not np.allclose(kept[-2], behind[-2])


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

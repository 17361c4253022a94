"""Drawing the probe."""

import numpy as np
import pytest
import tensorflow as tf

from elastic_tf.choose.probe import Draws, Probe, Worth
from elastic_tf.train.samples import Samples

X, Y = np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6)


def dataset(*arrays: np.ndarray, size: int = 2) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays).batch(size)


def test_dataset_is_drawn_batch_after_batch() -> None:
    probe = Draws(dataset(X, Y), 4, 0)
    assert [probe.draw()[1].numpy().tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 0, 1]]


def test_rows_are_drawn_at_random_and_belong_together() -> None:
    probe = Draws((X, Y), 4, 0)
    draws = [probe.draw() for _ in range(3)]
    assert len({tuple(y.numpy()) for _, y, _ in draws}) > 1
    for x, y, weight in draws:
        np.testing.assert_array_equal(x.numpy()[:, 0] / 2, y)
        assert weight is None


@pytest.mark.parametrize("arrays", [False, True])
def test_weights_are_carried_along(arrays: bool) -> None:
    weights = np.linspace(0.0, 1.0, 6)
    source = (
        Samples(X, Y, sample_weight=weights, batch_size=2) if arrays else dataset(X, Y, weights)
    )
    _, y, drawn = Draws(source, 3, 0).draw()
    np.testing.assert_allclose(drawn, weights[y.numpy()])


def test_probe_is_named_in_messages() -> None:
    with pytest.raises(TypeError, match="`probe` must be .* Received: tuple: "):
        Probe((X,), 4, 0)


@pytest.mark.parametrize("arrays", [False, True])
def test_draws_go_on_where_they_were(arrays: bool) -> None:
    source = (X, Y) if arrays else dataset(X, Y, size=4)
    one, two = Draws(source, 3, 0), Draws(source, 3, 0)
    for _ in range(4):
        one.draw()
    two.skip(one.drawn)
    assert two.drawn == one.drawn
    np.testing.assert_array_equal(two.draw()[1], one.draw()[1])


def test_a_source_that_fails_is_named() -> None:
    spoiled = np.where(X == 4.0, np.nan, X)
    source = dataset(spoiled, Y, size=2).map(
        lambda x, y: (tf.debugging.check_numerics(x, "spoiled"), y)
    )
    probe = Draws(source, 2, 0)
    probe.draw()
    with pytest.raises(ValueError, match="`probe` must yield .*InvalidArgumentError from batch 2"):
        probe.draw()


def test_function_is_given_what_it_takes() -> None:
    seen = {}

    def watch(model, x, y, *, sample_weight=None, micro_batch_size=None):
        seen.update(weight=sample_weight, size=micro_batch_size)
        return np.ones(2)

    arrays = np.ones((6, 2), np.float32), np.arange(6), np.arange(6.0)
    worth = Worth(watch, Draws(arrays, 6, 0), micro_batch_size=2)
    found = worth.evaluate(None, worth.draw(0))
    assert found.tolist() == [1.0, 1.0] and seen["size"] == 2
    assert sorted(seen["weight"].numpy()) == [0, 1, 2, 3, 4, 5]

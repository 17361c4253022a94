"""Importance again and again: what its function is given."""

from types import SimpleNamespace

import numpy as np

from elastic_tf.choose.probe import Draws, Worth

MODEL = SimpleNamespace()


def test_function_is_given_what_it_takes() -> None:
    seen = {}

    def watch(model, x, y, *, sample_weight=None, micro_batch_size=None):
        seen.update(weight=sample_weight, size=micro_batch_size)
        return np.ones(2)

    arrays = np.ones((6, 2), np.float32), np.arange(6), np.arange(6.0)
    worth = Worth(watch, Draws(arrays, 6, 0), micro_batch_size=2)
    found = worth.evaluate(MODEL, worth.draw(0))
    assert found.tolist() == [1.0, 1.0] and seen["size"] == 2
    assert sorted(seen["weight"].numpy()) == [0, 1, 2, 3, 4, 5]

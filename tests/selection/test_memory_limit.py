import numpy as np
import pytest
import tensorflow as tf
from activations import activation_bytes

import elastic_tf as et
from elastic_tf.plan import Plan

L = tf.keras.layers


class Sum:
    """A limit whose peak is the sum of the items and something more where many are trained."""

    def __init__(self, sizes, limit, more=0):
        self.bytes, self.sizes, self.more = limit, np.asarray(sizes, float), more

    @property
    def items(self):
        return np.eye(len(self.sizes), dtype=bool), self.sizes

    def peak(self, plan):
        return int(self.sizes[plan.mask].sum()) + self.more * int(plan.mask.sum())


def profile(count):
    ones = np.ones(count)
    return et.TimingProfile.from_chain(t_dw=ones, t_dy=0 * ones, t_forward=1.0)


@pytest.mark.parametrize("seed", range(5))
def test_selection_is_the_best_that_keeps_the_limit(seed):
    rng = np.random.default_rng(seed)
    sizes, worth = rng.integers(1, 100, 8), rng.uniform(0.1, 1.0, 8)
    limit = Sum(sizes, int(sizes.sum() * 0.5))
    found = et.select_tensors(worth, profile(8), 1.0, memory=limit)
    plans = (np.arange(256)[:, None] >> np.arange(8) & 1).astype(bool)
    best = max(worth[mask].sum() for mask in plans if mask @ sizes <= limit.bytes)
    assert limit.peak(found.plan) <= limit.bytes
    assert found.importance == pytest.approx(best, rel=0.1)


def test_room_is_tightened_until_the_peak_keeps_the_limit():
    limit = Sum([10] * 8, 60, more=5)
    found = et.select_tensors(np.ones(8), profile(8), 1.0, memory=limit)
    assert found.mask.sum() == 4  # 15 each


def test_limit_below_every_step_names_the_smallest():
    limit = Sum([2**20, 3 * 2**20], 2**19)
    with pytest.raises(ValueError, match=r"Received: 0\.5 MiB; the smallest.*is 1\.0 MiB"):
        et.select_tensors(np.ones(2), profile(2), 1.0, memory=limit)


def test_required_tensors_that_do_not_fit_are_refused():
    limit = Sum([2**20, 3 * 2**20], 2**21)
    required = np.array([False, True])
    with pytest.raises(ValueError, match=r"the 1 required.*is 3\.0 MiB"):
        et.select_tensors(np.ones(2), profile(2), 1.0, memory=limit, required=required)


def test_paper_strategy_has_one_resource():
    with pytest.raises(ValueError, match="strategy='paper'"):
        et.select_tensors(np.ones(2), profile(2), 1.0, strategy="paper", memory=Sum([1, 1], 9))


def network(layers=3):
    return tf.keras.Sequential(
        [
            L.Input((32, 32, 3)),
            *(L.Conv2D(16, 3, padding="same", activation="relu") for _ in range(layers)),
            L.GlobalAveragePooling2D(),
            L.Dense(10),
        ]
    )


def compiled(layers=3):
    model = et.ElasticModel.from_model(network(layers))
    model.compile("adam", "mse")
    return model


def arrays(count=32):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 32, 32, 3)).astype(np.float32)
    return x, rng.normal(size=(count, 10)).astype(np.float32)


@pytest.mark.slow
def test_items_and_peaks_grow_with_what_is_trained():
    model = compiled()
    limit = et.memory.Limit("64 MiB", model, arrays(16))
    count = len(model.tensors)
    peaks = [limit.peak(Plan.from_mask(np.arange(count) >= first)) for first in range(count)]
    assert peaks == sorted(peaks, reverse=True)
    members, sizes = limit.items
    assert members.any(axis=1).all()
    kept = activation_bytes(model, arrays(16))
    gradients = sum(4 * tensor.shape.num_elements() for tensor in model.tensors)
    batch = sum(part.nbytes for part in arrays(16)[:1])  # is held anyway
    assert sizes.sum() - gradients == pytest.approx(kept - batch, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("importance", [None, et.importance.weight_magnitude])
def test_fit_keeps_the_limit(importance):
    model, (x, y) = compiled(), arrays()
    count = len(model.tensors)
    limit = et.memory.Limit(1, model, (x[:16], y[:16]))
    all_of, some = limit.peak(Plan.full(count)), limit.peak(Plan.from_mask(np.arange(count) > 3))
    memory = (all_of + some) // 2
    callback = et.ElasticCallback(
        profile(count),
        1.0,
        memory=memory,
        importance=importance,
        control=et.Control(share=0),
    )
    model.fit(x, y, batch_size=16, epochs=1, verbose=0, callbacks=[callback])
    chosen = callback.selections[0].selection.plan
    assert limit.peak(chosen) <= memory
    assert 0 < chosen.mask.sum() < count


@pytest.mark.parametrize("options", [{"probe": arrays()}, {"importance": et.importance.paper}])
def test_probe_beside_memory_is_refused(options):
    with pytest.raises(ValueError, match=r"needs no probe.*Received: memory='1 GiB'"):
        et.ElasticCallback(memory="1 GiB", **options)

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf.memory.activations import activation_bytes
from elastic_tf.plan import Plan
from elastic_tf.timing.cost_items import ModeCost

L = tf.keras.layers


class Sum:
    """A limit whose peak is the sum of the items and something more where many are trained."""

    def __init__(self, sizes, limit, more=0):
        self.bytes, self.sizes, self.more = limit, np.asarray(sizes, float), more

    @property
    def items(self):
        return np.eye(len(self.sizes), dtype=bool), self.sizes, 0.0 * self.sizes

    def peak(self, plan):
        return int(self.sizes[plan.mask].sum()) + self.more * int(plan.mask.sum())


def profile(count, modes=()):
    ones = np.ones(count)
    table = et.TimingProfile.from_chain(t_dw=ones, t_dy=0 * ones, t_forward=1.0)
    return dataclasses.replace(table, modes=modes)


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
    with pytest.raises(ValueError, match=r"Received: 512\.0 KiB; the smallest.*is 1\.0 MiB"):
        et.select_tensors(np.ones(2), profile(2), 1.0, memory=limit)


def test_required_tensors_that_do_not_fit_are_refused():
    limit = Sum([2**20, 3 * 2**20], 2**21)
    required = np.array([False, True])
    with pytest.raises(ValueError, match=r"the 1 required.*is 3\.0 MiB"):
        et.select_tensors(np.ones(2), profile(2), 1.0, memory=limit, required=required)


def test_filtered_kernel_is_chosen_where_an_exact_one_keeps_too_much():
    modes = (ModeCost(0, "filtered:2", 0.5),)
    limit = Sum([100, 100], 130)
    limit.peak = lambda plan: int(
        100 * plan.mask[1] + (25 if plan.modes[0] == 2 else 100) * plan.mask[0]
    )
    worth = np.array([[1.0, 0.9], [1.0, 0.0]])
    found = et.select_plan(worth, profile(2, modes), 1.0, memory=limit)
    assert found.plan.modes.tolist() == [2, 1]


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
    members, sizes, rectified = limit.items
    assert members.any(axis=1).all()
    output = 4 * 16 * 32 * 32 * 16  # of each rectifier, one behind each convolution
    assert rectified.sum() == 3 * output
    kept = activation_bytes(model, arrays(16))
    gradients = sum(4 * tensor.shape.num_elements() for tensor in model.tensors)
    batch = sum(part.nbytes for part in arrays(16)[:1])  # is held anyway
    assert sizes.sum() - gradients == pytest.approx(kept - batch, rel=0.01)


def test_filtering_pays_where_a_rectifier_keeps_what_it_drops():
    model, batch = compiled(layers=8), arrays(8)
    kernels = np.flatnonzero([tensor.shape.rank == 4 for tensor in model.tensors])
    table = profile(18, tuple(ModeCost(k, "filtered:2", 0.5) for k in kernels.tolist()))
    limit = et.memory.Limit(1, model, batch)
    worth = np.tile([1.0, 0.8], (18, 1))
    limit.bytes = int(0.7 * limit.peak(Plan.full(18)))
    found = et.select_plan(worth, table, 1.0, memory=limit)
    exact = et.select_plan(worth[:, :1], table, 1.0, modes=(), memory=limit)
    assert limit.peak(found.plan) <= limit.bytes
    assert found.importance > exact.importance + 1.0


@pytest.mark.slow
@pytest.mark.parametrize("probe", [False, True])
def test_fit_keeps_the_limit(probe):
    model, (x, y) = compiled(), arrays()
    count = len(model.tensors)
    limit = et.memory.Limit(1, model, (x[:16], y[:16]))
    all_of, some = limit.peak(Plan.full(count)), limit.peak(Plan.from_mask(np.arange(count) > 3))
    memory = (all_of + some) // 2
    callback = et.ElasticCallback(
        profile(count),
        1.0,
        memory=memory,
        probe=(x, y) if probe else None,
        control=et.Control(share=0),
    )
    model.fit(x, y, batch_size=16, epochs=1, verbose=0, callbacks=[callback])
    chosen = callback.selections[0].selection.plan
    assert limit.peak(chosen) <= memory
    assert 0 < chosen.mask.sum() < count


def test_limit_is_not_profiled_again():
    with pytest.raises(ValueError, match="Received: 1 beside memory='64 MiB'"):
        et.ElasticCallback(memory="64 MiB", control=et.Control(reprofile_every=1))


@pytest.mark.slow
def test_probe_that_does_not_fit_is_refused():
    model, data = compiled(), arrays(16)
    limit = et.memory.Limit("0.1 MiB", model, data)
    with pytest.raises(ValueError, match=r"Received: 102\.4 KiB, where one sample takes"):
        limit.probe_rows()

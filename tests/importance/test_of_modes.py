"""The worth of modes, against gradients computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf.choose.importance.of_modes import of_modes
from elastic_tf.choose.importance.tracking import cosine_similarity
from elastic_tf.train.engine import modes

L = tf.keras.layers
SCE = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def model() -> et.ElasticModel:
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((8, 8, 3))
    x = L.Conv2D(8, 3, padding="same", activation="relu", name="conv")(inputs)
    x = L.BatchNormalization()(x)
    x = L.DepthwiseConv2D(3, padding="same", name="depthwise")(x)
    made = et.ElasticModel.from_model(
        tf.keras.Model(inputs, L.Dense(4, name="head")(L.Flatten()(x)))
    )
    made.compile("adam", SCE)
    return made


def probe() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(6, 8, 8, 3)).astype(np.float32), np.arange(6) % 4


def gradients(model: et.ElasticModel, plan: et.Plan) -> list[np.ndarray]:
    with model._planned(plan):
        return [
            np.array(g) for g in model.gradients([*map(tf.constant, probe())], model.tensors)[1]
        ]


def test_worth_is_importance_times_what_a_mode_keeps(model: et.ElasticModel) -> None:
    count = len(model.tensors)
    importance = np.arange(1.0, count + 1.0)
    found = of_modes(model, *probe(), ["filtered:2", "channels:1/4"], importance=importance)
    true = gradients(model, et.Plan.full(count))
    filtered = gradients(model, modes.everywhere(model, "filtered:2"))
    assert found.worth.shape == (count, 3)
    assert found.worth[:, 0].tolist() == importance.tolist()
    for k, tensor in enumerate(model.tensors):
        keeps = 0.0
        if tensor.shape.rank == 4:
            keeps = max(cosine_similarity(true[k].ravel(), filtered[k].ravel()), 0.0)
        assert found.worth[k, 1] == pytest.approx(importance[k] * keeps, abs=1e-5)
    assert 0.0 < found.worth[0, 1] < 1.0


def test_an_importance_below_0_falls_where_a_mode_keeps_less(model: et.ElasticModel) -> None:
    count = len(model.tensors)
    up, down = (
        of_modes(model, *probe(), ["filtered:2"], importance=np.full(count, sign)).worth
        for sign in (1.0, -1.0)
    )
    able = up[:, 1] > 0.0
    np.testing.assert_allclose(down[able, 1], up[able, 1] - 2.0)


def test_samples_without_weight_count_for_nothing() -> None:
    x, y = probe()
    weight = np.array([2.0, 2.0, 2.0, 0.0, 0.0, 0.0], np.float32)
    options = {"modes": ["filtered:2", "channels:1/4"], "importance": et.importance.depth}
    whole = of_modes(plain(), x, y, sample_weight=weight, micro_batch_size=4, **options).worth
    half = of_modes(plain(), x[:3], y[:3], **options).worth
    np.testing.assert_allclose(whole, half, rtol=1e-4, atol=1e-6)


def test_channels_are_worth_the_share_of_their_gradient(model: et.ElasticModel) -> None:
    importance = np.ones(len(model.tensors))
    found = of_modes(model, *probe(), ["channels:1/4"], importance=importance)
    (kernel,) = [k for k, tensor in enumerate(model.tensors) if "conv/kernel" in tensor.name]
    energy = (gradients(model, et.Plan.full(len(importance)))[kernel] ** 2).sum(axis=(0, 1, 2))
    np.testing.assert_allclose(found.channels[kernel], energy, rtol=1e-4)
    best = max(energy[k] + energy[k + 1] for k in range(7))  # two of eight, side by side
    assert found.worth[kernel, 1] == pytest.approx((best / energy.sum()) ** 0.5, rel=1e-4)


def plain() -> et.ElasticModel:
    tf.keras.utils.set_random_seed(0)
    layers = [L.Input((8, 8, 3)), L.Conv2D(8, 3, padding="same", activation="relu"), L.Flatten()]
    made = et.ElasticModel.from_model(tf.keras.Sequential([*layers, L.Dense(4)]))
    made.compile("sgd", SCE)
    return made


def test_micro_batches_are_worth_what_the_whole_probe_is() -> None:
    x = np.random.default_rng(0).normal(size=(7, 8, 8, 3)).astype(np.float32)
    given = plain(), x, np.arange(7) % 3, ["filtered:2", "channels:1/4"]
    whole, parts = (of_modes(*given, micro_batch_size=size).worth for size in (None, 3))
    assert (whole[0] != 0.0).all()
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-9)


def test_nothing_is_left_behind(model: et.ElasticModel) -> None:
    before = [variable.numpy() for variable in model.variables]
    of_modes(model, *probe(), ["filtered:2"])
    np.testing.assert_equal([v.numpy() for v in model.variables], before)


def test_a_mode_that_no_kernel_can_have_is_refused(model: et.ElasticModel) -> None:
    dense = et.ElasticModel.from_model(tf.keras.Sequential([L.Input((4,)), L.Dense(3)]))
    dense.compile("sgd", SCE)
    with pytest.raises(ValueError, match="Received: 'filtered:2' for .*Leave it out"):
        of_modes(dense, np.zeros((2, 4), np.float32), np.zeros(2), ["filtered:2"])

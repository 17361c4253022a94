"""A `fit` that chooses modes of kernels together with what is trained."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf.choose.selection import records
from elastic_tf.files.json_form import to_json
from elastic_tf.plan import EXACT, code_of
from elastic_tf.timing.cost_items import CostItem, ModeCost

L = tf.keras.layers
MODES = ("filtered:2", "channels:1/2")


@pytest.fixture
def model() -> et.ElasticModel:
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((8, 8, 3))
    x = L.Conv2D(8, 3, padding="same", activation="relu", use_bias=False)(inputs)
    x = L.Conv2D(8, 3, padding="same", activation="relu", use_bias=False)(x)
    x = L.Dense(4, name="head", use_bias=False)(L.GlobalAveragePooling2D()(x))
    made = et.ElasticModel.from_model(tf.keras.Model(inputs, x))
    made.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def profile(*modes: ModeCost) -> et.TimingProfile:
    items = [CostItem.of([k], 10.0, layer=str(k)) for k in range(3)]
    items += [CostItem.of(range(2), 10.0, layer="2")]
    return et.TimingProfile(t_forward=10.0, items=tuple(items), count=3, modes=modes)


def test_fit_trains_the_modes_that_fit(model: et.ElasticModel) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 8, 8, 3)).astype(np.float32), np.arange(32) % 4
    costs = [ModeCost(0, MODES[1], 1.0), ModeCost(1, MODES[0], 1.0)]
    callback = et.ElasticCallback(
        profile(*costs),
        rho=33.0 / 50.0,  # forward, the shared work, the head, and both kernels at 1
        importance=functools.partial(et.importance.of_modes, modes=MODES[::-1]),
        probe=et.Probe((x, y), size=16),
        required=np.array([False, False, True]),
        control=et.Control(share=0.0),
    )
    before = model.tensors[0].numpy()
    model.fit(x, y, batch_size=8, epochs=2, callbacks=[callback], verbose=0)
    (first, *_) = callback.selections
    assert first.importance.shape == (3, 3)
    codes = [code_of(MODES[1]), code_of(MODES[0]), EXACT]
    assert first.selection.plan.modes.tolist() == codes
    assert first.predicted_ratio == pytest.approx(32.0 / 50.0)
    assert not first.is_full
    trained = first.selection.plan.channels[0]
    others = np.setdiff1d(np.arange(8), trained)
    after = model.tensors[0].numpy()
    if len(callback.selections) == 1:
        np.testing.assert_array_equal(after[..., others], before[..., others])
    assert (after[..., list(trained)] != before[..., list(trained)]).all()
    again = records.from_json(to_json(first))
    assert again.selection.plan == first.selection.plan


def test_a_profile_made_anew_has_the_modes_of_the_one_before(model: et.ElasticModel) -> None:
    x, y = np.ones((16, 8, 8, 3), np.float32), np.arange(16) % 4
    callback = et.ElasticCallback(
        profile(ModeCost(0, MODES[1], 1.0), ModeCost(1, MODES[0], 1.0)),
        rho=0.9,
        importance=functools.partial(et.importance.of_modes, modes=MODES),
        control=et.Control(share=0.0, reprofile_every=1),
        interval=1,
    )
    model.fit(x, y, batch_size=8, epochs=2, callbacks=[callback], verbose=0)
    measured = callback.profiles[-1].profile.modes
    assert {cost.mode for cost in measured} == set(MODES)

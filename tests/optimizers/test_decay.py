"""SGDW without TensorFlow Addons is SGDW of TensorFlow Addons."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tensorflow as tf
from networks import CLASSES, crossentropy, network, values

import elastic_tf as et
from elastic_tf.optimizers import selected
from elastic_tf.optimizers.decay import SGDW

Schedule = tf.keras.optimizers.schedules.ExponentialDecay

SETTINGS = {
    "plain": {"momentum": 0.0},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "schedules": {
        "learning_rate": Schedule(0.1, 2, 0.5),
        "momentum": 0.9,
        "weight_decay": Schedule(1e-2, 3, 0.5),
    },
    "clipped": {"momentum": 0.9, "clipnorm": 0.5},
}


@pytest.fixture(scope="module")
def theirs():
    addons = pytest.importorskip(
        "tensorflow_addons", reason="tensorflow-addons, to compare with, has no build here"
    )
    return addons.optimizers.SGDW


@pytest.fixture
def without_addons(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_addons.optimizers", None)


def made(kind: type, name: str):
    return kind(**{"learning_rate": 0.05, "weight_decay": 1e-2, **SETTINGS[name]})


def after_steps(optimizer, dtype: str, masks: list[list[bool]]) -> list[list[bytes]]:
    """Weights and state after every step, in which the rows of a table have sparse gradients."""
    rng = np.random.default_rng(0)
    variables = [
        tf.Variable(tf.cast(rng.normal(size=shape), dtype), name=f"tensor{k}")
        for k, shape in enumerate([(4, 3), (3,), (6, 2)])
    ]
    selected.build(optimizer, variables)

    @tf.function
    def step(chosen: tuple[bool, ...], scale: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            rows = tf.gather(variables[2], [0, 3, 3])
            loss = tf.reduce_sum(tf.square(tf.tanh(variables[0]) @ variables[1][:, None]))
            loss = (loss + tf.reduce_sum(tf.square(rows))) * scale
        trained = [variable for variable, on in zip(variables, chosen) if on]
        selected.apply_selected(optimizer, tape.gradient(loss, trained), trained)

    seen = []
    for count, mask in enumerate(masks):
        step(tuple(mask), tf.cast(1 + count, dtype))
        seen.append(values([*variables, *selected.state(optimizer)]))
    return seen


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_step_equals_tensorflow_addons_bit_for_bit(theirs, name, dtype):
    masks = [[True] * 3, [False, True, True], [True, False, False], [True] * 3, [True] * 3]
    expected = after_steps(made(theirs, name), dtype, masks)
    assert after_steps(made(SGDW, name), dtype, masks) == expected
    assert len({str(step) for step in expected}) == len(masks)


def test_a_training_equals_tensorflow_addons_bit_for_bit(theirs):
    x = np.random.default_rng(0).normal(size=(8, 6, 6, 2)).astype(np.float32)
    y = np.arange(8) % CLASSES
    ends = []
    for kind in (theirs, SGDW):
        model = et.ElasticModel.from_model(network())
        model.compile(made(kind, "momentum"), crossentropy())
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
        state = selected.state(model.optimizer)
        ends.append(([v.name for v in state], values([*model.weights, *state])))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", SETTINGS)
def test_it_is_made_again_from_its_config(name):
    one = made(SGDW, name)
    two = tf.keras.optimizers.get(tf.keras.optimizers.serialize(one))
    assert type(two) is SGDW
    assert two.get_config() == one.get_config()


def test_it_stands_in_where_there_are_no_addons(without_addons):
    optimizer = selected.sgdw(0.1, momentum=0.5, weight_decay=0.01, nesterov=True)
    assert type(optimizer) is SGDW
    expected = {"learning_rate": 0.1, "momentum": 0.5, "weight_decay": 0.01, "nesterov": True}
    assert {key: optimizer.get_config()[key] for key in expected} == pytest.approx(expected)


def test_it_decays_apart_from_the_learning_rate(without_addons):
    weight = tf.Variable([1.0, -2.0])
    optimizer = selected.sgdw(0.1, momentum=0.0, weight_decay=0.01)
    selected.build(optimizer, [weight])
    selected.apply_selected(optimizer, [tf.ones(2)], [weight])
    np.testing.assert_allclose(weight.numpy(), [0.99 - 0.1, -1.98 - 0.1], rtol=1e-6)

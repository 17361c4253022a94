"""Plans are proved by training in them: at their offsets, everything else NaN, as Keras does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from related import nntrainer as memory

from elastic_tf.model import ElasticModel
from tests.support import arena

pytestmark = pytest.mark.hours  # a reproduction, apart from the package

L = tf.keras.layers
BATCH, STEPS = 4, 3


def conv_ac_fl():
    """Table 4's and Figure 5's network."""
    return tf.keras.Sequential(
        [
            L.Input((12, 12, 3)),
            L.Conv2D(3, 3, 2, "same", use_bias=False, name="l0"),
            L.Activation("sigmoid", name="l1"),
            L.Flatten(name="l2"),
        ]
    )


def pooled():
    return tf.keras.Sequential(
        [
            L.Input((12, 12, 3)),
            L.Conv2D(4, 3, activation="relu", name="a"),
            L.MaxPooling2D(name="max"),
            L.Conv2D(5, 3, padding="same", name="b"),
            L.ReLU(name="relu"),
            L.AveragePooling2D(2, name="average"),
            L.Flatten(name="flat"),
            L.Dense(6, "tanh", name="c"),
            L.Dense(3, "softmax", name="head"),
        ]
    )


def residual():
    inputs = L.Input((8, 8, 3), name="image")
    x = L.Conv2D(4, 3, padding="same", name="stem")(inputs)
    y = L.Conv2D(4, 3, padding="same", activation="relu", name="branch")(x)
    x = L.ReLU(name="after")(L.Add(name="add")([x, y]))
    x = L.GlobalAveragePooling2D(name="pool")(x)
    return tf.keras.Model(inputs, L.Dense(3, name="head")(x))


def shared():
    inputs, layer = L.Input((8,), name="row"), L.Dense(8, "tanh", name="twice")
    x = layer(layer(inputs))
    return tf.keras.Model(inputs, L.Dense(3, name="head")(x))


def batches_of(model):
    rng = np.random.default_rng(0)
    shapes = [(BATCH, *one.shape[1:]) for one in (model.input, model.output)]
    return [tuple(rng.normal(size=s).astype(np.float32) for s in shapes) for _ in range(STEPS)]


def trained(network, rule="sgd", mask=None, clip=None, **options):
    """Weights of Keras and of the arena, and the plan."""
    tf.keras.utils.set_random_seed(0)
    model = ElasticModel.from_model(network())
    model.compile(arena.OPTIMIZERS[rule](global_clipnorm=clip), "mse")
    batches = batches_of(model)
    found, plan = arena.train(model, batches, rule, mask, clip, **options)
    if mask is not None:
        model.set_mask(mask)
    for x, y in batches:
        model.train_on_batch(x, y)
    return model.get_weights(), found, plan


def check(keras, found):
    assert all(np.isfinite(one).all() for one in found)
    for a, b in zip(keras, found):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-4)


@pytest.mark.parametrize("network", [conv_ac_fl, pooled, residual, shared])
def test_training_at_planned_offsets_gives_the_weights_of_keras(network):
    keras, found, _ = trained(network)
    check(keras, found)


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_slots_have_their_place(rule):
    keras, found, plan = trained(pooled, rule)
    check(keras, found)
    assert any(one.kind == "slots" for one in plan.tensors)


@pytest.mark.parametrize("mask", ["10101010", "00110100"])
def test_a_plan_of_some_tensors_is_enough_for_them(mask):
    keras, found, _ = trained(pooled, "momentum", np.array([*mask]) == "1")
    check(keras, found)


@pytest.mark.parametrize("network", [pooled, shared])
def test_gradients_that_are_clipped_together_are_all_there(network):
    keras, found, _ = trained(network, clip=0.1)
    check(keras, found)


@pytest.mark.parametrize(
    ("network", "swap", "lookahead"),
    [(pooled, "activations", 1), (pooled, "all", 0), (residual, "all", 1), (shared, "all", 0)],
)
def test_swapped_tensors_are_back_when_they_are_used(network, swap, lookahead):
    keras, found, plan = trained(network, "momentum", swap=swap, lookahead=lookahead)
    check(keras, found)
    assert any(one.mode == "S" for one in plan.tensors)


def test_a_tensor_that_is_let_go_too_early_is_found_out(monkeypatch):
    right = memory.plan

    def wrong(*args, **kwargs):
        plan = right(*args, **kwargs)
        tensors = [
            replace(one, orders=one.orders[:2]) if one.name == "max" else one
            for one in plan.tensors
        ]
        return replace(plan, tensors=tuple(tensors))

    monkeypatch.setattr(memory, "plan", wrong)
    with pytest.raises(AssertionError, match="max is"):
        trained(pooled)

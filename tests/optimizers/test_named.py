"""SGDW is that of TensorFlow Addons, bit for bit; fused Adam; and names."""

import numpy as np
import pytest
import tensorflow as tf
from networks import values

from elastic_tf.train import optimizers
from elastic_tf.train.optimizers.named import SGDW
from elastic_tf.train.optimizers.shampoo import Shampoo

Schedule = tf.keras.optimizers.schedules.ExponentialDecay

SETTINGS = {
    "plain": {"momentum": 0.0},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "schedule": {"learning_rate": Schedule(0.1, 2, 0.5), "momentum": 0.9},
    "clipped": {"momentum": 0.9, "clipnorm": 0.5},
}


@pytest.fixture(scope="module")
def theirs():
    addons = pytest.importorskip(
        "tensorflow_addons", reason="tensorflow-addons, to compare with, has no build here"
    )
    return addons.optimizers.SGDW


def made(kind: type, name: str):
    return kind(**{"learning_rate": 0.05, "weight_decay": 1e-2, **SETTINGS[name]})


def after_steps(optimizer, masks: list[list[bool]]) -> list[list[bytes]]:
    """Weights, count and momenta after every step; the gradient of a table is sparse."""
    rng = np.random.default_rng(0)
    variables = [
        tf.Variable(tf.cast(rng.normal(size=shape), tf.float32), name=f"tensor{k}")
        for k, shape in enumerate([(4, 3), (3,), (6, 2)])
    ]
    is_legacy = not isinstance(optimizer, tf.keras.optimizers.Optimizer)  # TensorFlow Addons'
    if is_legacy:
        optimizer._create_all_weights(variables)
    else:
        optimizers.build(optimizer, variables)

    @tf.function
    def step(chosen: tuple[bool, ...], scale: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            rows = tf.gather(variables[2], [0, 3, 3])
            loss = tf.reduce_sum(tf.square(tf.tanh(variables[0]) @ variables[1][:, None]))
            loss = (loss + tf.reduce_sum(tf.square(rows))) * scale
        trained = [variable for variable, on in zip(variables, chosen) if on]
        gradients = tape.gradient(loss, trained)
        if is_legacy:
            optimizer.apply_gradients(zip(gradients, trained))
        else:
            optimizers.apply_selected(optimizer, gradients, trained)

    seen = []
    for count, mask in enumerate(masks):
        step(tuple(mask), tf.cast(1 + count, tf.float32))
        seen.append(values([*variables, optimizer.iterations, *momenta(optimizer, variables)]))
    return seen


def momenta(optimizer, variables) -> list[tf.Variable]:
    """Of an optimizer that has them."""
    if hasattr(optimizer, "get_slot"):
        return [
            optimizer.get_slot(v, name) for name in optimizer.get_slot_names() for v in variables
        ]
    return optimizer.momentums if getattr(optimizer, "momentum", 0.0) else []


@pytest.mark.parametrize("name", SETTINGS)
def test_every_step_equals_tensorflow_addons_bit_for_bit(theirs, name):
    masks = [[True] * 3, [False, True, True], [True, False, False], [True] * 3, [True] * 3]
    expected = after_steps(made(theirs, name), masks)
    ours = after_steps(made(SGDW, name), masks)
    if name == "plain":  # theirs forgets the decay of sparse rows there
        assert [step[2] for step in ours] != [step[2] for step in expected]
        for step in (*ours, *expected):
            del step[2]
    assert ours == expected
    assert len({str(step) for step in expected}) == len(masks)


@pytest.mark.parametrize(
    "one",
    [*(made(SGDW, name) for name in SETTINGS), optimizers.adam(0.5, 0.8), Shampoo(0.1, memory=0.9)],
)
def test_it_is_made_again_from_its_config(one):
    two = tf.keras.optimizers.get(tf.keras.optimizers.serialize(one))
    assert type(two) is type(one)
    assert two.get_config() == one.get_config()


def test_fused_adam_is_keras_s_adam_but_for_rounding():
    masks = [[True] * 3, [True, False, True], [True] * 3]

    def weights(optimizer) -> np.ndarray:
        steps = after_steps(optimizer, masks)
        return np.concatenate([np.frombuffer(part, np.float32) for part in steps[-1][:2]])

    ours, theirs = weights(optimizers.adam(0.01)), weights(tf.keras.optimizers.Adam(0.01))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_decays_apart_from_the_learning_rate(momentum):
    """Of a sparse gradient, the rows that it has."""
    weight, table = tf.Variable([1.0, -2.0]), tf.Variable([[1.0], [2.0], [3.0]])
    optimizer = optimizers.sgdw(0.1, momentum=momentum, weight_decay=0.01)
    optimizers.build(optimizer, [weight, table])
    sparse = tf.IndexedSlices(tf.constant([[1.0], [1.0]]), tf.constant([0, 0]))
    optimizers.apply_selected(optimizer, [tf.ones(2), sparse], [weight, table])
    np.testing.assert_allclose(weight.numpy(), [0.99 - 0.1, -1.98 - 0.1], rtol=1e-6)
    np.testing.assert_allclose(table.numpy(), [[0.99 - 0.2], [2.0], [3.0]], rtol=1e-6)


@pytest.mark.parametrize("name", optimizers.NAMES)
def test_an_optimizer_is_made_by_its_name(name):
    optimizer = optimizers.by_name(name, 0.5)
    optimizers.build(optimizer, [tf.Variable(1.0)])
    assert optimizers.rate(optimizer).numpy() == 0.5


@pytest.mark.parametrize(
    ("make", "received"),
    [
        (lambda: optimizers.sgdw(0.1, momentum=1.0), "momentum=1.0"),
        (lambda: optimizers.sgdw(0.1, weight_decay=-0.1), "weight_decay=-0.1"),
        (lambda: optimizers.shampoo(0.1, memory=1.0), "memory=1.0"),
        (lambda: optimizers.by_name("lion", 0.1), "name='lion'"),
    ],
)
def test_settings_that_are_none_are_refused(make, received):
    with pytest.raises(ValueError, match=received):
        make()

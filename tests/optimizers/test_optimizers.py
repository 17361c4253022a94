from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf
from networks import MORE_OPTIMIZERS, K, crossentropy, fit, network, shared_state, values

from elastic_tf.optimizers import selected
from elastic_tf.stack import gradient_registry


def tensors() -> list[tf.Variable]:
    tf.keras.utils.set_random_seed(0)
    return [tf.Variable(tf.random.normal((3, 2)), name=f"tensor{k}") for k in range(4)]


def apply(optimizer, variables, gradients) -> None:
    function = tf.function(lambda: selected.apply_selected(optimizer, gradients, variables))
    function()


def ones(variables) -> list[tf.Tensor]:
    return [tf.ones_like(variable) for variable in variables]


@pytest.mark.parametrize("kind", MORE_OPTIMIZERS)
def test_build_makes_the_variables_of_a_plain_model(kind):
    plain = network()
    plain.compile(MORE_OPTIMIZERS[kind](), crossentropy())
    fit(plain, epochs=1)
    optimizer = MORE_OPTIMIZERS[kind]()

    selected.build(optimizer, network().trainable_variables)

    # Inside a loss scale optimizer, Keras makes legacy variables in the name scope of a `tf.cond`.
    expected = [(v.name.replace("cond_1/", ""), v.shape) for v in selected.state(plain.optimizer)]
    assert [(v.name, v.shape) for v in shared_state(optimizer)] == expected


@pytest.mark.parametrize("kind", MORE_OPTIMIZERS)
def test_build_changes_nothing_when_built(kind):
    variables, optimizer = tensors(), MORE_OPTIMIZERS[kind]()
    selected.build(optimizer, variables)
    apply(optimizer, variables, ones(variables))
    before = selected.state(optimizer)
    bits = values(before)

    selected.build(optimizer, variables)

    after = selected.state(optimizer)
    assert [id(v) for v in after] == [id(v) for v in before]
    assert values(after) == bits


def test_build_raises_when_built_over_other_tensors():
    variables, optimizer = tensors(), K.Adam()
    optimizer.build(variables[:3])
    with pytest.raises(ValueError, match=r"built over 3 tensors without 'tensor3:0'"):
        selected.build(optimizer, variables)


@pytest.mark.parametrize("thing", [lambda: 3, "adam", None, [K.SGD(), K.Adam()]])
def test_check_raises_on_other_things(thing):
    with pytest.raises(TypeError, match=f"of type {type(thing).__name__}"):
        selected.check(thing)


@pytest.mark.parametrize("kind", MORE_OPTIMIZERS)
def test_apply_selected_keeps_every_bit_of_the_others(kind):
    variables, optimizer = tensors(), MORE_OPTIMIZERS[kind]()
    selected.build(optimizer, variables)
    apply(optimizer, variables, ones(variables))
    kept = [variables[0], variables[3]]
    kept += [v for v in selected.state(optimizer) if "tensor0" in v.name or "tensor3" in v.name]
    before = values(kept)

    for _ in range(3):
        apply(optimizer, variables[1:3], ones(variables[1:3]))

    assert values(kept) == before


@pytest.mark.parametrize("kind", MORE_OPTIMIZERS)
def test_apply_selected_changes_the_selected_as_apply_gradients(kind):
    ours, theirs = tensors(), tensors()
    our_optimizer, their_optimizer = MORE_OPTIMIZERS[kind](), MORE_OPTIMIZERS[kind]()
    selected.build(our_optimizer, ours)
    selected.build(their_optimizer, theirs)

    @tf.function
    def their_step():
        their_optimizer.apply_gradients(zip(ones(theirs[1:3]), theirs[1:3]))

    apply(our_optimizer, ours[1:3], ones(ours[1:3]))
    their_step()

    assert values(ours) == values(theirs)
    assert values(shared_state(our_optimizer)) == values(shared_state(their_optimizer))


@pytest.mark.parametrize("kind", ["adam", "sgdw", "scaled"])
def test_apply_selected_does_nothing_without_variables(kind):
    variables, optimizer = tensors(), MORE_OPTIMIZERS[kind]()
    selected.build(optimizer, variables)
    before = values(variables + selected.state(optimizer))

    apply(optimizer, [], [])

    assert values(variables + selected.state(optimizer)) == before


@pytest.mark.parametrize("module", [K, K.legacy])
def test_apply_selected_clips_by_the_norm_of_the_given_gradients(module):
    variables, optimizer = tensors(), module.SGD(1.0, global_clipnorm=1.0)
    selected.build(optimizer, variables)
    before = variables[1].numpy()

    apply(optimizer, variables[1:2], [10.0 * tf.ones_like(variables[1])])

    assert np.linalg.norm(variables[1].numpy() - before) == pytest.approx(1.0, rel=1e-5)


def test_apply_selected_keeps_decay_exclusions():
    variables, optimizer = tensors(), K.SGD(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["tensor1"])
    selected.build(optimizer, variables)
    before = [variable.numpy() for variable in variables]

    apply(optimizer, variables[1:3], [tf.zeros_like(variable) for variable in variables[1:3]])

    np.testing.assert_array_equal(variables[1].numpy(), before[1])
    np.testing.assert_allclose(variables[2].numpy(), before[2] * (1 - 0.5 * 0.1), rtol=1e-6)


def test_apply_selected_skips_a_step_that_is_not_finite():
    variables = tensors()
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(K.Adam(1e-2))
    selected.build(optimizer, variables)
    before, scale = values(variables), float(optimizer.loss_scale)

    apply(optimizer, variables[1:3], [np.inf * tf.ones_like(v) for v in variables[1:3]])

    assert values(variables) == before
    assert float(optimizer.loss_scale) == scale / 2


@pytest.mark.parametrize("kind", MORE_OPTIMIZERS)
def test_apply_selected_enters_nothing_into_the_gradient_registry(kind):
    variables, optimizer = tensors(), MORE_OPTIMIZERS[kind]()
    selected.build(optimizer, variables)
    before = set(gradient_registry._registry)

    apply(optimizer, variables, ones(variables))

    assert set(gradient_registry._registry) == before


@pytest.mark.parametrize("module", [K, K.legacy])
def test_apply_selected_keeps_an_aggregation_of_the_users_own(module):
    name = "_aggregate_gradients" if module is K.legacy else "aggregate_gradients"

    class Halving(module.SGD):
        pass

    setattr(Halving, name, lambda self, pairs: [(g / 2, v) for g, v in pairs])
    variables, optimizer = tensors(), Halving(1.0)
    selected.build(optimizer, variables)
    before = variables[0].numpy()

    apply(optimizer, variables[:1], ones(variables[:1]))

    np.testing.assert_allclose(variables[0].numpy(), before - 0.5, rtol=1e-6)


def test_gradients_are_unscaled():
    variables = tensors()
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(K.SGD(0.1))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variables[0])

    (gradient,) = selected.gradients(optimizer, tape, loss, variables[:1])

    np.testing.assert_array_equal(gradient, np.ones((3, 2)))


def test_gradients_are_none_where_the_loss_does_not_depend_on_the_tensor():
    variables, optimizer = tensors(), K.SGD(0.1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variables[0])

    assert selected.gradients(optimizer, tape, loss, variables[:2])[1] is None


def test_finalizing_only_leaves_the_other_tensors():
    variables, optimizer = tensors(), K.SGD(0.1, use_ema=True)
    selected.build(optimizer, variables)
    for variable in variables:
        variable.assign_add(tf.ones_like(variable))
    before = values(variables)

    with selected.finalizing_only(optimizer, {id(variables[1])}):
        optimizer.finalize_variable_values(variables)

    assert [k for k in range(4) if values(variables)[k] != before[k]] == [1]


def test_finalizing_only_puts_the_optimizer_back():
    optimizer = K.SGD(0.1, use_ema=True)
    with selected.finalizing_only(optimizer, set()):
        pass
    assert "finalize_variable_values" not in vars(optimizer)


@pytest.mark.parametrize("part", ["learning_rate", "current_loss_scale", "iter", "beta_1"])
def test_state_holds(part):
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(K.legacy.Adam(1e-2))
    selected.build(optimizer, tensors())
    assert any(part in variable.name for variable in selected.state(optimizer))


def test_sgdw_decays_apart_from_the_learning_rate():
    variables = tensors()
    optimizer = selected.sgdw(0.1, momentum=0.0, weight_decay=0.01)
    selected.build(optimizer, variables)
    before = variables[0].numpy()

    apply(optimizer, variables[:1], ones(variables[:1]))

    np.testing.assert_allclose(variables[0].numpy(), before - 0.01 * before - 0.1, rtol=1e-5)


def test_sgdw_is_made_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        selected.sgdw(1e-3)


@pytest.mark.slow
def test_import_leaves_tensorflow_addons_alone():
    code = "import sys, elastic_tf.optimizers; sys.exit('tensorflow_addons' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Adam's bias correction for tensors that come and go."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from elastic_tf import optimizers
from elastic_tf.optimizers import bias_correction

K = tf.keras.optimizers
KINDS = {
    "adam": lambda: K.Adam(0.01, amsgrad=True),
    "adamw": lambda: K.AdamW(0.01, weight_decay=0.1),
    "adamax": lambda: K.Adamax(0.01),
    "fused": lambda: optimizers.adam(0.01),
}
TENSORS, STEPS = 3, 20


def tensors() -> list[tf.Variable]:
    rng = np.random.default_rng(0)
    return [tf.Variable(rng.normal(size=(4, 2)).astype(np.float32)) for _ in range(TENSORS)]


def gradients(step: int) -> list[tf.Tensor]:
    rng = np.random.default_rng(step)
    return [tf.constant(rng.normal(size=(4, 2)).astype(np.float32)) for _ in range(TENSORS)]


def trained(optimizer, variables, masks) -> None:
    """One step for each mask, each mask in a graph of its own, as in training."""
    functions = {}
    for step, mask in enumerate(masks):
        chosen = [variable for variable, on in zip(variables, mask) if on]
        if mask not in functions:
            functions[mask] = tf.function(
                lambda parts, chosen=chosen: optimizers.apply_selected(optimizer, parts, chosen)
            )
        functions[mask]([part for part, on in zip(gradients(step), mask) if on])


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_trains_as_if_the_steps_that_it_missed_had_not_been(kind):
    rng = np.random.default_rng(1)
    masks = [(True, *map(bool, rng.integers(0, 2, TENSORS - 1))) for _ in range(STEPS)]
    variables, optimizer = tensors(), KINDS[kind]()
    optimizers.build(optimizer, variables)

    trained(optimizer, variables, masks)

    for k, alone in enumerate(tensors()):
        reference = KINDS[kind]()
        optimizers.build(reference, [alone])
        for step in np.flatnonzero([mask[k] for mask in masks]):
            reference.apply_gradients([(gradients(step)[k], alone)])
        np.testing.assert_array_equal(variables[k].numpy(), alone.numpy())


def test_a_late_tensor_takes_steps_as_long_as_the_learning_rate():
    variables, optimizer = tensors(), K.Adam(0.01)
    optimizers.build(optimizer, variables)
    trained(optimizer, variables, [(True, False, False)] * STEPS)
    before = variables[1].numpy()
    trained(optimizer, variables, [(False, True, False)])
    np.testing.assert_allclose(np.abs(variables[1].numpy() - before), 0.01, rtol=1e-4)


def test_the_count_is_in_checkpoints(tmp_path):
    variables, optimizer = tensors(), K.Adam(0.01)
    optimizers.build(optimizer, variables)
    trained(optimizer, variables, [(True, False, True)] * 5)
    path = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "backup"))
    again = K.Adam(0.01)
    optimizers.build(again, tensors())
    tf.train.Checkpoint(optimizer=again).read(path)
    assert bias_correction.of(again).numpy().tolist() == [0, 5, 0]


def test_counts_hold_inside_a_loss_scale_optimizer():
    variables, alone = tensors(), tensors()[1]
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(K.Adam(0.01), initial_scale=2.0)
    optimizers.build(optimizer, variables)
    reference = K.Adam(0.01)
    reference.build([alone])
    for chosen in ([variables[0]], [variables[1]]):
        for _ in range(5):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(variable**2) for variable in chosen])
            parts = optimizers.gradients(optimizer, tape, loss, chosen)
            optimizers.apply_selected(optimizer, parts, chosen)
    for _ in range(5):
        reference.apply_gradients([(2.0 * alone, alone)])
    np.testing.assert_array_equal(variables[1].numpy(), alone.numpy())


@pytest.mark.parametrize("optimizer", [K.SGD(0.1), K.Nadam(0.1)])
def test_others_keep_the_count_of_all(optimizer):
    variables = tensors()
    optimizers.build(optimizer, variables)
    trained(optimizer, variables, [(True, False, False)] * 2)
    assert bias_correction.of(optimizer) is None
    assert optimizer.iterations.numpy() == 2

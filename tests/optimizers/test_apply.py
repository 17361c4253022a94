"""Optimizers applied to some of the tensors that they are built over, which come and go."""

import numpy as np
import pytest
import tensorflow as tf
from networks import MORE_OPTIMIZERS, K, chain, crossentropy, images, shared_state, values

from elastic_tf import stack
from elastic_tf.stack import gradient_registry
from elastic_tf.train import optimizers


def tensors() -> list[tf.Variable]:
    tf.keras.utils.set_random_seed(0)
    return [tf.Variable(tf.random.normal((3, 2)), name=f"tensor{k}") for k in range(4)]


def apply(optimizer, variables, gradients) -> None:
    tf.function(lambda: optimizers.apply_selected(optimizer, gradients, variables))()


def ones(variables) -> list[tf.Tensor]:
    return [tf.ones_like(variable) for variable in variables]


@pytest.mark.parametrize("kind", ["sgdw", "rmsprop", "scaled"])
def test_build_makes_the_variables_of_a_plain_model_once(kind):
    plain, (x, y) = chain(), images()
    plain.compile(MORE_OPTIMIZERS[kind](), crossentropy())
    plain.train_on_batch(x, y)
    optimizer, variables = MORE_OPTIMIZERS[kind](), chain().trainable_variables
    optimizers.build(optimizer, variables)
    ours, theirs = shared_state(optimizer), optimizers.state(plain.optimizer)
    # without the names of optimizers, which Keras 3 counts
    names = [[(v.name.rpartition("/")[2], v.shape) for v in part] for part in (ours, theirs)]
    assert names[0] == names[1]
    before = optimizers.state(optimizer)
    optimizers.build(optimizer, variables)
    assert all(one is two for one, two in zip(before, optimizers.state(optimizer)))


def test_what_an_optimizer_would_keep_of_tensors_left_out_and_one_of_others_are_refused():
    variables, optimizer = tensors(), K.Adam()
    optimizer.build(variables[:3])
    with pytest.raises(ValueError, match=r"built over other tensors, without 'tensor3:0'"):
        optimizers.build(optimizer, variables)
    with pytest.raises(TypeError, match="Received: use_ema=True. Leave"):
        optimizers.check(K.SGD(use_ema=True))
    if not stack.IS_KERAS2:
        with pytest.raises(TypeError, match="Received: gradient_accumulation_steps=2. Leave"):
            optimizers.check(K.SGD(gradient_accumulation_steps=2))


@pytest.mark.parametrize("thing", [3, None, [K.SGD(), K.Adam()], np.eye(40)])
def test_check_raises_on_other_things(thing):
    with pytest.raises(TypeError, match=f"of type {type(thing).__name__}") as refused:
        optimizers.check(thing)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("kind", MORE_OPTIMIZERS)
def test_apply_selected_changes_the_selected_as_keras_and_no_bit_of_the_others(kind):
    ours, theirs = tensors(), tensors()
    our_optimizer, their_optimizer = MORE_OPTIMIZERS[kind](), MORE_OPTIMIZERS[kind]()
    optimizers.build(our_optimizer, ours)
    optimizers.build(their_optimizer, theirs)
    left = [v for v in optimizers.state(our_optimizer) if "tensor0" in v.name]
    before, registered = values([ours[0], *left]), set(gradient_registry._registry)

    @tf.function
    def their_step():
        scaled = getattr(their_optimizer, "scale_loss", lambda gradient: gradient)  # by Keras 3
        their_optimizer.apply_gradients(zip(map(scaled, ones(theirs[1:3])), theirs[1:3]))

    apply(our_optimizer, ours[1:3], ones(ours[1:3]))
    assert set(gradient_registry._registry) == registered
    their_step()

    assert values(ours) == values(theirs)
    assert values(shared_state(our_optimizer)) == values(shared_state(their_optimizer))
    assert values([ours[0], *left]) == before


CORRECTING = {
    "adam": lambda: K.Adam(0.01, amsgrad=True),
    "adamw": lambda: K.AdamW(0.01, weight_decay=0.1),
    "adamax": lambda: K.Adamax(0.01),
    "fused": lambda: optimizers.adam(0.01),
    "scaled": lambda: tf.keras.mixed_precision.LossScaleOptimizer(K.Adam(0.01), initial_scale=2.0),
}


@pytest.mark.parametrize("kind", CORRECTING)
def test_a_tensor_trains_as_if_the_steps_that_it_missed_had_not_been(kind):
    """Moments are corrected by its own steps, each mask in a graph of its own, as in training."""
    rng, variables, functions = np.random.default_rng(1), tensors(), {}
    masks = [(True, *map(bool, rng.integers(0, 2, 3))) for _ in range(6)]
    optimizer = CORRECTING[kind]()
    optimizers.build(optimizer, variables)

    def step(given, chosen):
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(one * part) for one, part in zip(chosen, given)])
        parts = optimizers.gradients(optimizer, tape, loss, chosen)
        optimizers.apply_selected(optimizer, parts, chosen)

    given = [[tf.constant(part, tf.float32) for part in rng.normal(size=(4, 3, 2))] for _ in masks]
    for mask, parts in zip(masks, given):
        chosen = [variable for variable, on in zip(variables, mask) if on]
        if mask not in functions:
            functions[mask] = tf.function(lambda parts, chosen=chosen: step(parts, chosen))
        functions[mask]([part for part, on in zip(parts, mask) if on])

    for k, alone in enumerate(tensors()):
        reference = K.Adam(0.01) if kind == "scaled" else CORRECTING[kind]()
        optimizers.build(reference, [alone])
        update = tf.function(
            lambda part, to=reference, one=alone: to.apply_gradients([(part, one)])
        )
        for parts in (parts for mask, parts in zip(masks, given) if mask[k]):
            update(parts[k])
        np.testing.assert_array_equal(variables[k], alone)

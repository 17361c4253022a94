"""Training under plans that filter the gradients of some kernels."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf.engine.modes.filtering import filtered_gradients
from elastic_tf.timing.trace import StepFunction

pytestmark = pytest.mark.usefixtures("deterministic")
L = tf.keras.layers
SCE = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def model(optimizer="sgd", **compiled):
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((12, 12, 3))
    x = L.Conv2D(4, 3, 2, padding="same", activation="relu", name="first")(inputs)
    x = L.DepthwiseConv2D(3, padding="same", activation="relu", name="depthwise")(x)
    x = L.Conv2D(6, 1, use_bias=False, name="point")(x)
    x = L.Conv2D(6, 3, padding="same", groups=2, use_bias=False, name="groups")(x)
    x = L.Dense(3, name="head")(L.GlobalAveragePooling2D()(x))
    made = et.ElasticModel.from_model(tf.keras.Model(inputs, x))
    made.compile(optimizer, SCE, **compiled)
    return made


def batch(count=8):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 12, 12, 3)).astype(np.float32), np.arange(count) % 3


def kernels(made, *names):
    return np.array([t.name.split("/")[0] in names and "bias" not in t.name for t in made.tensors])


def plan(made, r, *names):
    return et.Plan.full(len(made.tensors)).filtered(r, kernels(made, *names))


def test_a_step_takes_the_filtered_gradients_and_all_others_follow_from_them():
    made, (x, y) = model(), batch()
    made.set_plan(plan(made, 2, "groups"))
    point = made.get_layer("point")
    seen = []
    before = {t.name: t.numpy() for t in made.tensors}
    between = tf.keras.Model(made.input, point.output)(x)
    head = made.get_layer("head")
    with tf.GradientTape() as tape:
        outputs = made.get_layer("groups")(between)
        tape.watch(outputs)
        loss = SCE(y, head(tf.reduce_mean(outputs, [1, 2])))
    upstream = tape.gradient(loss, outputs)
    of_x, of_kernel = filtered_gradients(between, made.tensors[5], upstream, 2)
    made.fit(x, y, batch_size=8, epochs=1, verbose=0)
    for tensor in made.tensors:
        seen.append(before[tensor.name] - tensor.numpy())
    names = [tensor.name for tensor in made.tensors]
    moved = dict(zip(names, seen))
    np.testing.assert_allclose(moved["groups/kernel:0"], 0.01 * of_kernel, rtol=1e-3, atol=1e-7)
    with tf.GradientTape() as tape:
        inside = tf.keras.Model(made.input, made.get_layer("depthwise").output)
        kernel = tf.constant(before["point/kernel:0"])
        tape.watch(kernel)
        for tensor in made.tensors:
            tensor.assign(before[tensor.name])
        y_point = tf.nn.conv2d(inside(x), kernel, 1, "SAME")
    expected = tape.gradient(y_point, kernel, output_gradients=of_x)
    np.testing.assert_allclose(moved["point/kernel:0"], 0.01 * expected, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("r", [2, 4])
def test_no_convolution_is_left_in_the_backward_pass_of_filtered_layers(r):
    made, data = model(), batch()
    chosen = plan(made, r, "first", "depthwise", "point")

    def backward(which):
        graph = StepFunction(made, which).graph(data)
        return [op.type for op in graph.get_operations() if "Backprop" in op.type]

    assert len(backward(chosen)) < len(backward(None))
    assert not any("Depthwise" in kind for kind in backward(chosen))
    filtered = plan(made, 2, "first", "depthwise", "point", "groups")
    assert backward(filtered) == []


def test_filtering_ends_with_the_step_and_changes_no_forward_pass():
    made, (x, y) = model(), batch()
    before = made.predict(x, verbose=0)
    made.set_plan(plan(made, 2, "first", "depthwise", "groups"))
    loss = made.train_on_batch(x, y)
    np.testing.assert_allclose(loss, SCE(y, before), rtol=1e-6)
    for layer in made.layers:
        assert not {"call", "convolution_op", "_jit_compiled_convolution_op"} & set(vars(layer))
    one, two = model(), model()
    two.set_plan(plan(two, 2, "groups"))
    two.set_plan(None)
    for either in (one, two):
        either.fit(x, y, batch_size=4, verbose=0)
    np.testing.assert_equal(one.get_weights(), two.get_weights())


def test_filtered_training_learns_and_a_frozen_tensor_keeps_every_bit():
    made, (x, y) = model(tf.keras.optimizers.Adam(0.01)), batch(48)
    x = x + 2.0 * y[:, None, None, None] * np.linspace(-1, 1, 12, dtype=np.float32)[:, None, None]
    modes = plan(made, 2, "depthwise", "groups").modes.copy()
    modes[:2] = 0
    frozen = [tensor.numpy() for tensor in made.tensors[:2]]
    made.set_plan(et.Plan(modes))
    losses = made.fit(x, y, batch_size=8, epochs=25, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    for before, tensor in zip(frozen, made.tensors):
        np.testing.assert_array_equal(before, tensor)


@pytest.mark.parametrize(
    ("frozen", "filtered"),
    # an exact kernel is the first that is trained, a filtered one, one behind a rectifier
    [(4, ["groups"]), (5, ["groups"]), (2, ["depthwise", "groups"])],
)
@pytest.mark.filterwarnings("error:Every step runs the whole forward pass")
def test_filtered_steps_take_what_lies_before_them_from_the_samples(frozen, filtered):
    def trained(memory):
        made = model()
        modes = plan(made, 2, *filtered).modes.copy()
        modes[:frozen] = 0
        made.set_plan(et.Plan(modes))
        made.fit(et.Samples(*batch(16), batch_size=4, memory=memory), epochs=3, verbose=0)
        return made.get_weights()

    np.testing.assert_equal(trained(1 << 30), trained(0))


def test_a_mode_that_a_tensor_cannot_have_is_refused():
    made = model()
    with pytest.raises(ValueError, match=r"filtered:2' for 'head/kernel:0'"):
        made.set_plan(plan(made, 2, "head"))
    with pytest.raises(ValueError, match=r"one of \[2, 4, 7\]. Received: 3"):
        plan(made, 3, "point")
    with pytest.raises(ValueError, match="outputs are known to have at least 7 pixels a side"):
        made.set_plan(plan(made, 7, "point"))

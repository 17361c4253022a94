"""Training some output channels of kernels."""

import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf import stack
from elastic_tf.memory.ops import graph_flops
from elastic_tf.timing.step import StepFunction
from elastic_tf.train import optimizers

pytestmark = pytest.mark.usefixtures("deterministic")
L = tf.keras.layers
SCE = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
KERNELS = ("first", "depthwise", "point", "hidden")
AXES = {"depthwise": 2}


def model(optimizer="sgd", **compiled):
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((12, 12, 3))
    x = L.Conv2D(8, 3, 2, padding="same", activation="relu", name="first")(inputs)
    options = {"depth_multiplier": 2, "padding": "same", "activation": "relu"}
    x = L.DepthwiseConv2D(3, name="depthwise", **options)(x)
    x = L.Conv2D(12, 1, use_bias=False, name="point")(x)
    x = L.Dense(9, name="hidden")(L.GlobalAveragePooling2D()(x))
    made = et.ElasticModel.from_model(tf.keras.Model(inputs, L.Dense(3, name="head")(x)))
    made.compile(optimizer, SCE, **compiled)
    return made


def batch(count=8):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 12, 12, 3)).astype(np.float32), np.arange(count) % 3


def index(made, name):
    return next(k for k, t in enumerate(made.tensors) if t.name.split("/")[0] == name)


def plan(made, parts=4, seed=0, names=KERNELS):
    """Some channels of the named kernels, everything else exact."""
    rng, chosen = np.random.default_rng(seed), {}
    for k in (index(made, name) for name in names):
        most = made.tensors[k].shape[axis(made, k)]
        chosen[k] = rng.permutation(most)[: most // parts]
    return et.Plan.full(len(made.tensors)).with_channels(f"channels:1/{parts}", chosen)


def axis(made, k):
    return AXES.get(made.tensors[k].name.split("/")[0], made.tensors[k].shape.rank - 1)


def frozen_part(made, chosen, variable, k):
    """The channels of a tensor, or of one of its slots, that are not trained."""
    return np.delete(variable.numpy(), chosen.channels[k], axis(made, k))


def slots_of(optimizer, tensor):
    inner = optimizers.unwrapped(optimizer)
    at = stack.index_of(inner, tensor)
    names = ("momentums", "_momentums", "_velocities")
    lists = (getattr(inner, name, None) for name in names)
    return [stack.raw(slots[at]) for slots in lists if slots]


K = tf.keras.optimizers
SCALED = tf.keras.mixed_precision.LossScaleOptimizer
OPTIMIZERS = {
    "adam": lambda: K.Adam(0.01, weight_decay=0.1, amsgrad=True),
    "momentum": lambda: K.SGD(0.1, 0.9, nesterov=True, global_clipnorm=1.0),
    "sgdw": lambda: et.optimizers.sgdw(0.1),
    "fused adam": lambda: et.optimizers.adam(0.01),
    "loss scale": lambda: SCALED(K.SGD(0.1, 0.9)),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_channels_train_as_in_exact_training_and_the_others_keep_every_bit(kind):
    made, exact = (model(OPTIMIZERS[kind](), run_eagerly=True) for _ in range(2))
    for either in (made, exact):
        either.train_on_batch(*batch(4))  # so that all slots are under way
    chosen = plan(made, 2)
    made.set_plan(chosen)

    def held(of, k):
        slots = slots_of(of.optimizer, of.tensors[k])
        return [of.tensors[k], *(slot for slot in slots if slot.shape.rank)]

    before = {k: [frozen_part(made, chosen, v, k) for v in held(made, k)] for k in chosen.channels}
    for either in (made, exact):
        either.train_on_batch(*batch(4))
    for k, channels in chosen.channels.items():
        assert len(before[k]) > 1
        for variable, reference, old in zip(held(made, k), held(exact, k), before[k]):
            np.testing.assert_array_equal(frozen_part(made, chosen, variable, k), old)
            some, same = (v.numpy().take(channels, axis(made, k)) for v in (variable, reference))
            assert (some != 0).any()
            if kind != "momentum":  # whose norm is that of all gradients
                np.testing.assert_allclose(some, same, rtol=2e-4, atol=2e-6)


def backward(made, chosen, data):
    optimizers.build(made.optimizer, made.trainable_variables)
    graph = StepFunction(made, chosen).graph(data)
    return graph, [op for op in graph.get_operations() if "BackpropFilter" in op.type]


def test_the_traced_weight_gradient_has_the_chosen_channels_alone():
    made, data, parts = model(), batch(), 4
    names = ("first", "depthwise", "point")
    graph, found = backward(made, plan(made, parts, names=names), data)
    shapes = sorted(tuple(op.outputs[0].shape) for op in found)
    expected = [(1, 1, 16, 12 // parts), (3, 3, 3, 8 // parts), (3, 3, 8 // parts, 2)]
    assert shapes == sorted(expected)
    exact, _ = backward(made, None, data)
    sizes = 27 * 8 + 9 * 16 + 16 * 12  # of the kernels; 8 images of 6 x 6 pixels
    saved = (graph_flops(exact) - graph_flops(graph)) / (1 - 1 / parts)
    assert 0 <= saved - 2 * 8 * 36 * sizes <= 20 * sizes  # and updates


def test_other_channels_need_no_new_trace():
    made, (x, y) = model("adam"), batch(8)
    made.set_plan(plan(made, seed=0))
    made.fit(x, y, batch_size=4, verbose=0)
    function = made.train_tf_function
    other = plan(made, seed=1)
    before = [tensor.numpy() for tensor in made.tensors]
    made.set_plan(other)
    made.fit(x, y, batch_size=4, verbose=0)
    for k in other.channels:
        moved = (before[k] != made.tensors[k].numpy()).any(
            axis=tuple(a for a in range(before[k].ndim) if a != axis(made, k))
        )
        assert set(np.flatnonzero(moved)) <= set(other.channels[k])
        assert moved.any()
    assert made.train_tf_function is function
    assert function.experimental_get_tracing_count() == 1

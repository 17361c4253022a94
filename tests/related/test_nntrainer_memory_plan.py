from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from related import nntrainer as memory
from related.nntrainer.lifetimes import Tensor
from related.nntrainer.memory_plan import offsets

from elastic_tf.memory.activations import activation_bytes
from elastic_tf.memory.executor import live_bytes
from elastic_tf.model import ElasticModel

pytestmark = pytest.mark.hours  # a reproduction, apart from the package

L = tf.keras.layers
K = tf.keras.optimizers
FLOAT = 4
BATCH = 4


def chain():
    return tf.keras.Sequential(
        [
            L.Input((8, 8, 3)),
            L.Conv2D(4, 3, name="a"),
            L.BatchNormalization(name="bn"),
            L.ReLU(name="relu"),
            L.Conv2D(4, 3, activation="relu", name="b"),
            L.Flatten(name="flat"),
            L.Dropout(0.5, name="drop"),
            L.Dense(3, activation="softmax", name="head"),
        ]
    )


def residual():
    inputs = L.Input((8, 8, 3))
    x = L.Conv2D(4, 3, padding="same", name="stem")(inputs)
    y = L.BatchNormalization(name="bn")(x)
    y = L.ReLU(name="relu")(y)
    y = L.Conv2D(4, 3, padding="same", name="branch")(y)
    x = L.Add(name="add")([x, y])
    x = L.ReLU(name="after")(x)
    x = L.GlobalAveragePooling2D(name="pool")(x)
    return tf.keras.Model(inputs, L.Dense(3, name="head")(x))


def concatenated():
    first, second = L.Input((8,), name="first"), L.Input((6,), name="second")
    x = L.Dense(5, "tanh", name="x")(first)
    y = L.Dense(5, "relu", name="y")(second)
    z = L.Concatenate(name="both")([x, y, x * y, y - x])
    outputs = [L.Dense(3, name="head")(z), L.Dense(2, name="other")(x)]
    return tf.keras.Model([first, second], outputs)


def shared():
    inputs, layer = L.Input((8,)), L.Dense(8, name="twice")
    x = L.ReLU()(layer(inputs))
    return tf.keras.Model(inputs, L.Dense(3, name="head")(layer(x)))


def nested():
    inner = tf.keras.Sequential([L.Input((8,)), L.Dense(6, "relu"), L.Dense(6)], name="inner")
    inputs = L.Input((8,))
    x = inner(inputs)
    return tf.keras.Model(inputs, [L.Dense(3, name="head")(L.Reshape((2, 3))(x)), x])


NETWORKS = [chain, residual, concatenated, shared, nested]


def check(plan) -> None:
    """Follow the step: what is read was written there, and nothing has changed it since.

    A tensor is written at its first order and read at the others.
    """
    intact: dict[str, Tensor] = {}
    for order in range(len(plan.live)):
        now = [one for one in plan.tensors if order in one.orders]
        for one in now:
            assert one.name in intact or min(one.orders) == order, f"{one.name} is gone"
        for one in (one for one in now if min(one.orders) == order):
            if one.mode in ("RV", "E"):
                assert any(other.buffer == one.buffer for other in intact.values())
            else:
                for other in [*intact.values()]:
                    below = other.offset + other.bytes <= one.offset
                    if not below and one.offset + one.bytes > other.offset:
                        is_in_place = (one.mode, one.buffer) == ("MV", other.buffer)
                        assert other not in now or is_in_place, f"{one.name} on {other.name}"
                        del intact[other.name]
            intact[one.name] = one


def mask_of(data, model) -> np.ndarray:
    count = len(model.trainable_variables)
    return np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))


@pytest.mark.parametrize("network", NETWORKS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_whatever_is_read_is_still_there(network, data):
    model = network()
    plan = memory.plan(model, BATCH, mask_of(data, model))
    check(plan)
    assert plan.lower_bound <= plan.peak <= plan.unplanned


def total(y, y_pred):
    """A loss whose gradient takes nothing."""
    return tf.reduce_sum(tf.reshape(y_pred, (tf.shape(y_pred)[0], -1)), axis=-1)


@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_kept_for_the_backward_pass_is_what_tensorflow_keeps(network):
    model = ElasticModel.from_model(network())
    model.compile(K.SGD(0.1), total)
    x, y = (
        tf.nest.map_structure(lambda one: np.ones((BATCH, *one.shape[1:]), np.float32), ends)
        for ends in (model.input, model.output)
    )
    rng = np.random.default_rng(0)
    for share in (1.0, 0.5, 0.2):
        mask = rng.random(len(model.tensors)) < share
        plan = memory.plan(model, BATCH, mask)
        loss = sum(name.endswith("forward") for name in plan.steps.values())
        outputs = {one.name.removesuffix("/label") for one in plan.tensors if one.kind == "label"}
        passed_on = {
            one.buffer: one.bytes
            for one in plan.tensors
            if one.kind in ("activation", "kept")
            and max(one.orders) >= loss + (one.name in outputs)  # where the loss reads them
        }
        kept = activation_bytes(model, (x, y), mask)
        assert sum(passed_on.values()) == kept, (mask, passed_on)


@pytest.mark.parametrize(("optimizer", "each"), [(K.Adam(), 2), (K.SGD(momentum=0.9), 1)])
def test_slots_are_those_of_the_optimizer_for_trained_tensors(optimizer, each):
    model = chain()
    model.compile(optimizer, "mse")
    mask = np.array([True, *[False] * 5, True, True])
    slots = [one for one in memory.plan(model, BATCH, mask).tensors if one.kind == "slots"]
    weights = [model.get_layer("a").kernel, *model.get_layer("head").trainable_weights]
    assert sum(one.bytes for one in slots) == each * FLOAT * sum(w.numpy().size for w in weights)


def test_a_loop_is_refused_and_an_unrolled_one_planned():
    with pytest.raises(ValueError, match="'looped' with a variant"):
        memory.plan(tf.keras.Sequential([L.Input((5, 3)), L.LSTM(4, name="looped")]), BATCH)
    plan = memory.plan(tf.keras.Sequential([L.Input((5, 3)), L.LSTM(4, unroll=True)]), BATCH)
    assert any(one.kind == "kept" for one in plan.tensors)


ORDERS = st.integers(0, 30)
BUFFERS = st.lists(st.tuples(st.integers(0, 1000), ORDERS, ORDERS), min_size=1, max_size=40)


@given(BUFFERS)
def test_nothing_overlaps_in_space_and_time(buffers):
    sizes, lives = [one[0] for one in buffers], [(min(one[1:]), max(one[1:])) for one in buffers]
    found = offsets(sizes, lives)
    for order in range(31):
        live = sorted(
            (found[k], found[k] + sizes[k])
            for k, (first, last) in enumerate(lives)
            if first <= order <= last and sizes[k]
        )
        assert all(end <= begin for (_, end), (begin, _) in zip(live, live[1:]))
    peak = max(place + size for place, size in zip(found, sizes))
    assert live_bytes(sizes, lives).max() <= peak <= sum(sizes)

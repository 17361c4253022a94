"""Tables and figures of Moon et al., NNTrainer, ICSE 2024, from Keras models."""

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from related.nntrainer import Step, offsets

from elastic_tf.memory.executor import Tensor, live_bytes

pytestmark = pytest.mark.hours  # a reproduction, apart from the package

L = tf.keras.layers
KIB, MIB = 2**10, 2**20


def conv() -> list[L.Layer]:
    return [L.Input((224, 224, 3)), L.Conv2D(3, 3, 2, "same", use_bias=False, name="l0")]


def conv_sigmoid_flatten() -> list[L.Layer]:
    return [*conv(), L.Activation("sigmoid", name="l1"), L.Flatten(name="l2")]


def orders(step: Step) -> dict[str, tuple[int, ...]]:
    return {name: tuple(sorted(one.orders)) for name, one in step.tensors.items()}


@pytest.mark.parametrize("layers", [conv, conv_sigmoid_flatten])
def test_table_4_convolutions_take_65856_kib_beside_their_weights(layers):
    step = Step(tf.keras.Sequential(layers()), 64)
    weights = step.tensors["l0/kernel"].bytes
    # weights live through the step; their gradients take the place of what is dead, if there is any
    beside = step.placed() - weights * (2 if layers is conv else 1)
    assert (weights, beside) == (3 * 3 * 3 * 3 * 4, 65_856 * KIB)


def test_table_4_linear_is_within_two_in_ten_thousand():
    step = Step(tf.keras.Sequential([L.Input((150_528,)), L.Dense(300)]), 64)
    assert step.placed() / KIB == pytest.approx(390_590, rel=2e-4)


def test_figure_5_has_the_orders_and_the_five_tensors_that_remain():
    step = Step(tf.keras.Sequential(conv_sigmoid_flatten()), 4, has_loss=False)
    step.placed()
    found = orders(step)
    assert (found["input"], found["l0/derivative"]) == ((0, 9), (7, 9))
    assert found["l0/kernel/gradient"] == (9, 11)
    of_x1 = {k for one in step.tensors.values() if one.buffer == "l0" for k in one.orders}
    assert of_x1 == {0, 1, 2, 7}
    names = {one.buffer for one in step.tensors.values()}
    assert names == {"input", "l0", "l2/derivative", "l0/kernel", "l0/kernel/gradient"}


def test_figure_6_gives_the_last_derivative_the_place_of_the_output():
    # The text places the derivative before the gradient: by its rule it must live as long.
    layers = [L.Input((8,)), *(L.Dense(8, use_bias=False, name=f"l{k}") for k in range(3))]
    step = Step(tf.keras.Sequential(layers), 4, has_loss=False)
    for name, one in step.tensors.items():
        one.orders = {min(one.orders)} if name.endswith("gradient") else one.orders
    step.placed()
    assert (orders(step)["l2"], orders(step)["l2/derivative"][0]) == ((2,), 3)
    assert step.tensors["l2/derivative"].offset == step.tensors["l2"].offset


def test_vgg16_second_convolution_computes_its_derivative_in_32_14_mib():
    model = tf.keras.applications.VGG16(weights=None, input_shape=(32, 32, 3), classes=10)
    step = Step(model, 64)
    (order,) = [k for k, name in step.names.items() if name == "block1_conv2/linear: derivative"]
    needed = sum(one.bytes for one in step.tensors.values() if order in one.orders)
    assert needed / MIB == pytest.approx(32.14, abs=0.005)


BASELINE = 11  # MiB of the process itself in Figure 12


@pytest.mark.parametrize(("lookahead", "planned", "printed"), [(0, 40.0, 51), (1, 48.28, 71)])
def test_vgg16_swapped_needs_no_more_than_figure_12(lookahead, planned, printed):
    inside = tf.keras.applications.VGG16(weights=None, input_shape=(32, 32, 3), include_top=False)
    x = L.Dense(256, "relu")(L.Flatten()(inside.output))
    step = Step(tf.keras.Model(inside.input, L.Dense(10)(x)), 64)
    assert step.placed() / MIB == pytest.approx(142.4, abs=0.1)
    assert step.swapped(lookahead) / MIB == pytest.approx(planned, abs=0.01)
    assert planned + BASELINE <= printed


def test_a_frozen_layer_in_the_middle_keeps_its_input_no_longer_than_its_forward_pass():
    model = tf.keras.Sequential(
        [L.Input((784,)), *(L.Dense(64, name=f"l{k}") for k in range(2)), L.Dense(10, name="l2")]
    )
    mask = [True, True, False, False, True, True]
    full, frozen = orders(Step(model, 2048)), orders(Step(model, 2048, mask))
    assert (full["l0"], frozen["l0"]) == ((0, 1, 6), (0, 1))
    assert full.keys() - frozen.keys() == {"l1/kernel/gradient", "l1/bias/gradient"}
    # the derivative comes at the order where the gradients were
    assert (full["l0/derivative"][0], frozen["l0/derivative"][0]) == (7, 6)


def test_another_layer_is_refused():
    with pytest.raises(ValueError, match="'looped' of class LSTM"):
        Step(tf.keras.Sequential([L.Input((5, 3)), L.LSTM(4, name="looped")]), 4)


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
    tensors = [Tensor("", "", size, *life) for size, life in zip(sizes, lives)]
    assert live_bytes(tensors).max() <= peak <= sum(sizes)

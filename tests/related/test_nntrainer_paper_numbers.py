"""Tables and figures of Moon et al., NNTrainer, ICSE 2024, from Keras models."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from related import nntrainer as memory
from related.nntrainer.lifetimes import Step
from related.nntrainer.memory_plan import placed
from related.nntrainer.network import read

from elastic_tf.plan import Plan
from elastic_tf.train.engine.forward_order import forward_order

pytestmark = pytest.mark.hours  # a reproduction, apart from the package

L = tf.keras.layers
KIB, MIB = 2**10, 2**20
X0, X3, D3 = "x0", "l2", "l2/derivative"


def conv() -> list[L.Layer]:
    return [L.Input((224, 224, 3), name=X0), L.Conv2D(3, 3, 2, "same", use_bias=False, name="l0")]


def conv_sigmoid_flatten() -> list[L.Layer]:
    return [*conv(), L.Activation("sigmoid", name="l1"), L.Flatten(name=X3)]


def three_linear() -> list[L.Layer]:
    return [L.Input((8,), name=X0), *(L.Dense(8, use_bias=False, name=f"l{k}") for k in range(3))]


def planned_without_loss(
    layers: list[L.Layer], *, applied_at_once: bool = False
) -> memory.MemoryPlan:
    """As the figures have it: nothing reads the output, and there is no label."""
    model = tf.keras.Sequential(layers)
    tensors = forward_order(model)
    network = read(model, 4, tensors, Plan.full(len(tensors)))
    step = Step(network, slots=0.0)
    step.tensors.pop(f"{X3}/label")
    step.tensors[X3].orders.remove(len(network.layers))
    for one in step.tensors.values() if applied_at_once else ():
        if one.kind == "gradient":
            one.orders = {min(one.orders)}
    return placed(step)


def orders(plan: memory.MemoryPlan) -> dict[str, tuple[int, ...]]:
    return {one.name: tuple(sorted(one.orders)) for one in plan.tensors}


def at(plan: memory.MemoryPlan, step: str) -> int:
    return next(order for order, name in plan.steps.items() if name == step)


@pytest.mark.parametrize("layers", [conv, conv_sigmoid_flatten])
def test_table_4_convolutions_take_65856_kib_beside_their_weights(layers):
    plan = memory.plan(tf.keras.Sequential(layers()), 64)
    small = [one for one in plan.tensors if one.kind in ("weight", "gradient")]
    assert sum(one.bytes for one in small) == 2 * 3 * 3 * 3 * 3 * 4 < KIB
    # weights live through the step; their gradients take the place of what is dead, if there is any
    beside = plan.peak - small[0].bytes * (2 if layers is conv else 1)
    assert beside == 65_856 * KIB


def test_table_4_linear_is_within_two_in_ten_thousand():
    plan = memory.plan(tf.keras.Sequential([L.Input((150_528,)), L.Dense(300)]), 64)
    assert plan.peak / KIB == pytest.approx(390_590, rel=2e-4)


def test_figure_5_has_the_orders_and_the_five_tensors_that_remain():
    plan = planned_without_loss(conv_sigmoid_flatten())
    found = orders(plan)
    assert found[X0] == (0, 9)
    assert found["l0/kernel/gradient"] == (9, 11)
    assert found["l0/derivative"] == (7, 9)
    of_x1 = {order for one in plan.tensors if one.buffer == "l0" for order in one.orders}
    assert of_x1 == {0, 1, 2, 7}
    modes = {one.name: one.mode for one in plan.tensors}
    assert (modes["l1"], modes[X3], modes[X0]) == ("MV", "RV", "P")
    names = {one.name for one in plan.buffers}
    assert names == {X0, "l0", D3, "l0/kernel", "l0/kernel/gradient"}


def test_figure_6_gives_the_last_derivative_the_place_of_the_output():
    # The text places the derivative before the gradient: by its rule it must live as long.
    plan = planned_without_loss(three_linear(), applied_at_once=True)
    found, places = orders(plan), {one.name: one.offset for one in plan.tensors}
    assert (found[X3], found[D3][0]) == ((2,), 3)
    assert places[D3] == places[X3]
    alive = [one for one in plan.buffers if min(one.orders) < 3]
    end = max(one.offset + one.bytes for one in alive)
    assert places["l2/kernel/gradient"] == end  # nothing is dead that it could take the place of


def test_vgg16_second_convolution_computes_its_derivative_in_32_14_mib():
    model = tf.keras.applications.VGG16(weights=None, input_shape=(32, 32, 3), classes=10)
    plan = memory.plan(model, 64)
    order = at(plan, "block1_conv2: derivative")
    needed = sum(one.bytes for one in plan.tensors if order in one.orders)
    assert needed / MIB == pytest.approx(32.14, abs=0.005)


BASELINE = 11  # MiB of the process itself in Figure 12


@pytest.mark.parametrize(("lookahead", "printed"), [(0, 51), (1, 71)])
def test_vgg16_swapped_needs_no_more_than_figure_12(lookahead, printed):
    inside = tf.keras.applications.VGG16(weights=None, input_shape=(32, 32, 3), include_top=False)
    x = L.Dense(256, "relu")(L.Flatten()(inside.output))
    model = tf.keras.Model(inside.input, L.Dense(10)(x))
    plan = memory.plan(model, 64, swap="all", lookahead=lookahead)
    assert plan.lower_bound / MIB == pytest.approx({0: 40.0, 1: 48.28}[lookahead], abs=0.01)
    assert plan.peak / MIB + BASELINE <= printed
    kept = memory.plan(model, 64, swap="activations", lookahead=lookahead).peak
    assert plan.peak < kept < memory.plan(model, 64).peak


def test_a_frozen_layer_in_the_middle_keeps_its_input_no_longer_than_its_forward_pass():
    model = tf.keras.Sequential(
        [L.Input((784,)), *(L.Dense(64, name=f"l{k}") for k in range(2)), L.Dense(10, name="l2")]
    )
    mask = np.array([True, True, False, False, True, True])
    full, frozen = memory.plan(model, 2048), memory.plan(model, 2048, mask)
    assert (orders(full)["l0"], orders(frozen)["l0"]) == ((0, 1, 6), (0, 1))
    gone = {"l1/kernel/gradient", "l1/bias/gradient"}
    assert set(orders(full)) - set(orders(frozen)) == gone
    kept = [name for name, used in orders(full).items() if name not in {*gone, "l0"}]
    same = [name for name in kept if name.endswith("derivative") or "/" not in name]
    assert [orders(full)[name][0] for name in same if name != "l0/derivative"] == [
        orders(frozen)[name][0] for name in same if name != "l0/derivative"
    ]
    # the derivative comes at the order where the gradients were
    assert (orders(full)["l0/derivative"][0], orders(frozen)["l0/derivative"][0]) == (7, 6)

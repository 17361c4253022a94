"""The folding rules of the paper's Sec. 5, which data flow has to give without knowing them.

Each test traces a small model, gives its ops times by their type, and writes out t_dw and t_dy.
"""

from dataclasses import replace

import numpy as np
import tensorflow as tf

from elastic_tf.graph import members
from elastic_tf.model import ElasticModel
from elastic_tf.stack import raw
from elastic_tf.timing.attribution import Attribution, attribute, cacheable, forward_surplus
from elastic_tf.timing.profile import CostItem, TimingProfile
from elastic_tf.timing.step import StepFunction
from elastic_tf.timing.trace import StepTrace

L = tf.keras.layers
CONVOLUTION = {"Conv2DBackpropFilter": 10.0, "Conv2DBackpropInput": 100.0, "BiasAddGrad": 1.0}


def traced(model: tf.keras.Model, optimizer=None, *, on: bool = True, **options) -> StepTrace:
    elastic = ElasticModel.from_model(model)
    elastic.compile(optimizer or tf.keras.optimizers.SGD(0.1), "mse", **options)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, *model.input_shape[1:])).astype(np.float32)
    y = rng.normal(size=(2, *model.output_shape[1:])).astype(np.float32)
    run = StepFunction(elastic, np.full(len(elastic.tensors), on))
    return run.untimed((tf.constant(x), tf.constant(y)))


def timed(trace: StepTrace, times: dict[str, float]) -> StepTrace:
    """The trace with a time for each op type."""
    by_node = {n: times[node.op] for n, node in trace.nodes.items() if node.op in times}
    return replace(trace, times=by_node)


def table(trace: StepTrace, times: dict[str, float]) -> TimingProfile:
    trace = timed(trace, times)
    items = attribute(trace).items(trace.times)
    return TimingProfile(t_forward=0.0, items=tuple(items), count=len(trace.gradients))


def stack(*layers: L.Layer, shape: tuple[int, ...] = (8, 8, 2)) -> tf.keras.Model:
    inputs = x = L.Input(shape)
    for layer in layers:
        x = layer(x)
    return tf.keras.Model(inputs, L.GlobalAveragePooling2D()(x) if len(x.shape) == 4 else x)


def test_convolution_input_gradient_lands_on_the_tensor_before_the_kernel():
    # Sec. 5.1: kernel and bias each have their own gradient; a bias passes the error on for free
    profile = table(traced(stack(*(L.Conv2D(3, 3) for _ in range(3)))), CONVOLUTION)
    np.testing.assert_array_equal(profile.t_dw, [10, 1, 10, 1, 10, 1])
    np.testing.assert_array_equal(profile.t_dy, [0, 100, 0, 100, 0, 0])


def test_dense_layers_fold_like_convolutions():
    # Sec. 5.1; a MatMul gives the kernel's gradient, another passes the error on
    trace = traced(stack(*(L.Dense(3) for _ in range(3)), shape=(4,)))
    profile = table(trace, {"MatMul": 10.0, "BiasAddGrad": 1.0})
    np.testing.assert_array_equal(profile.t_dw, [10, 1, 10, 1, 10, 1])
    np.testing.assert_array_equal(profile.t_dy, [0, 10, 0, 10, 0, 0])


def test_batch_normalisation_is_one_block_on_its_beta():
    # Sec. 5.2: whatever is trained in it or before it runs all of it
    conv = {"use_bias": False}
    model = stack(L.Conv2D(3, 3, **conv), L.BatchNormalization(), L.Conv2D(3, 3, **conv))
    profile = table(traced(model), {**CONVOLUTION, "FusedBatchNormGradV3": 1000.0})
    np.testing.assert_array_equal(profile.t_dw, [10, 0, 0, 10])
    np.testing.assert_array_equal(profile.t_dy, [0, 0, 1100, 0])


def test_non_trainable_layers_land_on_the_last_tensor_before_them():
    # Sec. 5.3
    model = stack(L.Conv2D(3, 3), L.ReLU(), L.MaxPooling2D(), L.Conv2D(3, 3))
    profile = table(traced(model), {"ReluGrad": 7.0, "MaxPoolGrad": 30.0})
    np.testing.assert_array_equal(profile.t_dw, [0, 0, 0, 0])
    np.testing.assert_array_equal(profile.t_dy, [0, 37, 0, 0])


def test_layer_normalisation_passes_its_error_to_the_tensor_before_it():
    # Sec. 5.4 counts it as one block on beta. In TensorFlow gamma and beta stand outside the fused
    # op, or what Keras 3 has in its place, so that only what lies before needs its gradient.
    model = stack(L.Conv2D(3, 3), L.LayerNormalization(), L.Conv2D(3, 3))
    profile = table(traced(model), {"FusedBatchNormGradV3": 1000.0, "RsqrtGrad": 1000.0})
    np.testing.assert_array_equal(profile.t_dy, [0, 1000, 0, 0, 0, 0])


def test_attention_is_needed_by_query_and_key_and_what_lies_before():
    # Sec. 5.4: dense layers around attention ops
    inputs = L.Input((5, 4))
    x = L.Dense(4, name="before")(inputs)
    x = L.MultiHeadAttention(2, 2, name="attention")(x, x)
    model = tf.keras.Model(inputs, x)
    trace = traced(model)
    elastic_names = [v.name for v in ElasticModel.from_model(model).tensors]
    sets = attribute(trace).sets
    softmax = next(n for n, node in trace.nodes.items() if node.op == "Softmax")
    needed = {
        elastic_names[k]
        for name, node in trace.nodes.items()
        if softmax in node.inputs and name in sets and node.op == "Mul"
        for k in members(sets[name])
    }
    assert {name.split("/")[-2] for name in needed} == {"before", "query", "key"}


def test_norm_over_all_gradients_is_needed_by_all_and_its_squares_by_one_each():
    optimizer = tf.keras.optimizers.SGD(0.1, global_clipnorm=1.0)
    trace = traced(stack(L.Dense(3), L.Dense(3), shape=(4,)), optimizer)
    profile = table(trace, {"L2Loss": 5.0, "Square": 5.0, "Sqrt": 2.0})
    np.testing.assert_array_equal(profile.t_dw, [5, 5, 5, 5])
    assert [s for s in profile.items if s.time == 2.0][0].tensors == (0, 1, 2, 3)


def test_branches_do_not_pay_for_each_other():
    inputs, options = L.Input((8, 8, 2)), {"use_bias": False, "padding": "same"}
    branches = [L.Conv2D(3, 3, **options)(L.Conv2D(3, 3, **options)(inputs)) for _ in range(2)]
    model = tf.keras.Model(inputs, L.GlobalAveragePooling2D()(L.Add()(branches)))
    profile = table(traced(model), {"Conv2DBackpropInput": 100.0})
    convolutions = [layer for layer in model.layers if isinstance(layer, L.Conv2D)]
    early = {raw(one.kernel).name for one in convolutions if one.input is model.input}
    first = np.array([v.name in early for v in ElasticModel.from_model(model).tensors])
    times = sorted(profile.step_time(np.arange(4) == k) for k in range(4))
    assert times == [0, 0, 100, 100]
    assert first.sum() == 2 and profile.step_time(first) == 200


def test_every_op_is_in_the_forward_pass_or_in_a_set():
    trace = traced(stack(L.Conv2D(3, 3), L.BatchNormalization(), L.ReLU(), L.Conv2D(3, 3)))
    work = attribute(trace)
    sets = work.sets
    assert sorted(trace.nodes) == sorted([*sets, *work.forward])
    assert all(0 < bits < 1 << len(trace.gradients) for bits in sets.values())
    # the moving statistics of a batch normalisation are kept whatever is trained
    moving = {name for name, k in trace.handles.items() if k < 0}
    kinds = {"AssignVariableOp", "AssignSubVariableOp"}  # of Keras 3 and 2
    writes = [n for n, node in trace.nodes.items() if node.op in kinds]
    kept = [name for name in writes if trace.nodes[name].inputs[0] in moving]
    assert len(kept) >= 2 and not set(kept) & set(sets)


def test_forward_surplus_is_caused_by_the_tensors_whose_gradients_take_from_inside():
    layers = (L.Conv2D(3, 3), L.LeakyReLU())  # whose gradient takes what lies between them
    full, frozen = (traced(stack(*layers), on=on) for on in (True, False))
    full = timed(full, {"_FusedConv2D": 8.0, "LeakyRelu": 4.0})
    frozen = timed(frozen, {"_FusedConv2D": 5.0})
    surplus = forward_surplus(full, frozen, attribute(full))
    assert surplus == {(0, 1): 7.0}


def test_a_normalisation_that_is_folded_when_frozen_costs_only_its_own_tensors():
    conv = {"use_bias": False}
    layers = (L.Conv2D(3, 3, **conv), L.BatchNormalization(), L.ReLU(), L.Conv2D(3, 3, **conv))
    full, frozen = (traced(stack(*layers), on=on) for on in (True, False))
    times = {"FusedBatchNormGradV3": 4.0, "_FusedBatchNormGradEx": 4.0, "ReluGrad": 2.0}
    times |= {"FusedBatchNormV3": 3.0, "_FusedBatchNormEx": 3.0, "Conv2D": 5.0}
    full = timed(full, times)
    # the kernel is scaled there: an op of a level of its own, of weights alone
    frozen = timed(frozen, {"_FusedConv2D": 5.0, "Conv2D": 5.0, "Mul": 0.5})
    scaling = sum(time for name, time in frozen.times.items() if frozen.nodes[name].op == "Mul")
    work = attribute(full, frozen)
    assert scaling and work.is_folded(4).tolist() == [False, True, True, False]
    found = {item.tensors: item.time for item in work.items(full.times)}
    assert found[1, 2] >= 4.0 and sum(t for k, t in found.items() if k != (1, 2)) <= 2.0
    surplus = forward_surplus(full, frozen, work)
    assert sum(surplus.values()) == 3.0 - scaling and 3.0 - scaling <= surplus[1, 2] < 3.0


def test_work_of_a_chain_of_convolutions_is_gathered_by_tensors():
    conv = {"use_bias": False}
    layers = (L.Conv2D(3, 3, **conv), L.ReLU(), *(L.Conv2D(3, 3, **conv) for _ in range(3)))
    times = {"Conv2DBackpropInput": 100.0, "ReluGrad": 7.0, "Conv2DBackpropFilter": 10.0}
    items = table(traced(stack(*layers, shape=(10, 10, 2))), times).items
    assert [(item.tensors, item.time) for item in items] == [
        ((0,), 10.0 + 7.0 + 100.0),
        ((0, 1), 100.0),
        ((0, 1, 2), 100.0),
        ((1,), 10.0),
        ((2,), 10.0),
        ((3,), 10.0),
    ]


def test_a_surplus_is_forward_work_and_a_saving_makes_its_condition_cheaper():
    work = Attribution({"first": 0b01, "both": 0b11, "second": 0b10}, (), ())
    changes = {(0,): 3.0, (0, 1): -4.0, (0, 2): 2.0, (1,): -6.0}
    assert work.items({"first": 10.0, "both": 8.0, "second": 5.0}, changes) == [
        CostItem((0,), 13.0),
        CostItem((0, 1), 4.0),
        CostItem((0, 2), 2.0),
    ]


def test_forward_work_can_be_spared_until_a_tensor_before_it_is_trained():
    frozen = traced(stack(L.Conv2D(2, 1), L.ReLU(), L.Conv2D(3, 1)), on=False)
    frozen = timed(frozen, {"Conv2D": 5.0, "_FusedConv2D": 5.0, "Mean": 1.0})
    work = {item.tensors: item.time for item in cacheable(frozen)}
    assert work == {(0, 1): 5.0, (0, 1, 2, 3): 7.0}  # with the pooling, and the mean of the loss


def test_forward_work_behind_a_random_number_cannot_be_spared():
    frozen = traced(stack(L.Dense(3), L.Dropout(0.5), L.Dense(2), shape=(4,)), on=False)
    found = cacheable(timed(frozen, {"MatMul": 5.0, "_FusedMatMul": 5.0}))
    assert [(item.tensors, item.time) for item in found] == [((0, 1), 5.0)]

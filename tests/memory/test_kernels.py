"""Numbers of Kwon et al., TinyTrain, ICML 2024, for MobileNetV2 0.35 at 128 pixels."""

import few_images
import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf.methods.kernels import kernel_costs

L = tf.keras.layers
KIB, MIB = 2**10, 2**20


@pytest.fixture(scope="module")
def mobilenet():
    """As the paper has it: 448 channels at the end, where Keras has 1280."""
    options = {"alpha": 0.35, "include_top": False, "weights": None}
    base = tf.keras.applications.MobileNetV2((128, 128, 3), **options)
    x = L.Conv2D(448, 1, use_bias=False)(base.get_layer("block_16_project_BN").output)
    return et.ElasticModel(base.input, L.ReLU(6.0)(L.BatchNormalization()(x)))


@pytest.fixture(scope="module")
def costs(mobilenet):
    return kernel_costs(mobilenet)


def last(costs, count):
    """Shares that train the last kernels exactly."""
    shares = np.zeros(len(costs.sizes))
    shares[np.flatnonzero(costs.macs)[-count:]] = 1.0
    return shares


def test_table_4_has_as_many_layers_weights_and_multiply_adds(costs):
    kernels = costs.macs > 0
    assert (kernels.sum(), costs.sizes[kernels].sum()) == (52, 288_864)
    assert costs.macs.sum() == 17_449_728


@pytest.mark.parametrize(
    ("blocks", "printed"), [*enumerate([54.7, 101.6, 148.5, 218.4, 325.7, 432.9], 1)]
)
def test_table_11_has_the_same_activations_of_the_last_blocks(costs, blocks, printed):
    # three kernels in a block, and the last one
    assert round(costs.saved(last(costs, 3 * blocks + 1)) / KIB, 1) == printed


def test_inputs_and_outputs_take_896_kib_at_most(costs):
    assert costs.peak == 896 * KIB


def test_table_2_has_the_same_full_and_last_layer_training(costs):
    assert costs.full_macs == 34_899_456
    assert costs.backward_macs(last(costs, 1)) == 802_816
    assert costs.memory(last(costs, 1)) == 896 * KIB + 4 * 4 * 448 * 112
    assert round(costs.memory(last(costs, 1)) / MIB, 2) == 1.64


def test_some_channels_take_their_share(costs, mobilenet):
    k = np.flatnonzero(costs.macs)[-1]
    plan = et.Plan(np.zeros(len(costs.sizes), int)).with_channels("channels:1/8", {k: range(56)})
    shares = costs.shares(plan)
    assert (shares[k], np.count_nonzero(shares)) == (1 / 8, 1)
    assert costs.backward_macs(shares) == 802_816 // 8
    assert costs.memory(shares) == costs.peak + 4 * 4 * 448 * 112 // 8


def test_a_layer_that_is_used_twice_costs_twice():
    inputs, layer = L.Input((4,)), L.Dense(4)
    model = et.ElasticModel(inputs, layer(layer(inputs)))
    found = kernel_costs(model)
    assert (found.macs.tolist(), found.inputs.tolist()) == ([32, 0], [32, 0])


def test_regularized_kernels_have_no_channels_of_their_own():
    plain = kernel_costs(et.ElasticModel.from_model(few_images.network()))
    names = {"exact", "channels:1/2", "channels:1/4", "channels:1/8"}
    assert all(set(found) == names for found in plain.channels.values())
    inputs = L.Input((4,))
    model = et.ElasticModel(inputs, L.Dense(4, kernel_regularizer="l2")(inputs))
    assert kernel_costs(model).channels == {0: {"exact": 4}}


def test_images_of_unknown_size_are_refused():
    inputs = L.Input((None, None, 3))
    model = et.ElasticModel(inputs, L.Conv2D(2, 3)(inputs))
    with pytest.raises(ValueError, match="1 uses of kernels"):
        kernel_costs(model)

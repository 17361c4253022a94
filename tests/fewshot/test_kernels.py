"""Numbers of Kwon et al., TinyTrain, ICML 2024, for MobileNetV2 0.35 at 128 pixels; its rule."""

import few_images
import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf.methods.kernels import Budgets, KernelCosts, kernel_costs, paper_rule
from elastic_tf.plan import NAMES, Plan

KERNELS = 4
MODES = {"exact": 8, "channels:1/2": 4, "channels:1/4": 2}


def network(seed: int) -> tuple[dict[int, np.ndarray], KernelCosts]:
    """Kernels and biases in turn, and the worth of the kernels' channels."""
    rng = np.random.default_rng(seed)
    is_kernel = np.arange(2 * KERNELS) % 2 == 0
    drawn = [rng.integers(50, 2000, 2 * KERNELS) for _ in range(4)]
    sizes, macs, inputs, kept = (np.where(is_kernel, part, 0) for part in drawn)
    indices = np.flatnonzero(is_kernel).tolist()
    costs = KernelCosts(sizes, 50 * macs, inputs, kept, 3000, dict.fromkeys(indices, MODES))
    return {k: rng.lognormal(size=8) for k in indices}, costs


def assert_best_channels(plan: Plan, worth: dict[int, np.ndarray]) -> None:
    for k, channels in plan.channels.items():
        assert NAMES[int(plan.modes[k])] in MODES
        assert worth[k][list(channels)].min() >= np.delete(worth[k], list(channels)).max()


@pytest.mark.parametrize("seed", range(8))
def test_the_paper_s_rule_takes_the_first_of_the_rank_within_both_budgets(seed: int) -> None:
    worth, costs = network(seed)
    rank = sorted(worth, key=lambda k: -worth[k].sum() / (costs.sizes[k] * costs.macs[k]))
    before = 0
    for part in np.linspace(0.3, 1.0, 8):
        budgets = Budgets.of(costs, round(30_000 * part) + costs.peak, 1.0)
        plan = paper_rule(worth, costs, budgets)
        shares = costs.shares(plan)
        assert costs.memory(shares) <= budgets.memory
        assert costs.backward_macs(shares) <= budgets.macs
        alone = [k for k in rank if costs.memory(np.eye(8)[k] / 4) <= budgets.memory]
        chosen = [k for k in alone if shares[k]]
        assert chosen == alone[: len(chosen)] and len(chosen) >= before
        before = len(chosen)
        assert_best_channels(plan, worth)
    assert before > 1


def test_without_budgets_everything_is_trained() -> None:
    worth, costs = network(0)
    plan = paper_rule(worth, costs, Budgets(np.inf, np.inf))
    assert np.flatnonzero(plan.mask).tolist() == list(worth)
    assert not plan.channels


def test_budgets_that_nothing_fits_into_are_refused() -> None:
    worth, costs = network(0)
    with pytest.raises(ValueError, match="A kernel must fit into both budgets. Received: 3000 b"):
        paper_rule(worth, costs, Budgets.of(costs, 3000, 1.0))


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
    assert costs.peak == 896 * KIB  # of inputs and outputs


@pytest.mark.parametrize(
    ("blocks", "printed"), [*enumerate([54.7, 101.6, 148.5, 218.4, 325.7, 432.9], 1)]
)
def test_table_11_has_the_same_activations_of_the_last_blocks(costs, blocks, printed):
    # three kernels in a block, and the last one
    assert round(costs.saved(last(costs, 3 * blocks + 1)) / KIB, 1) == printed


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

"""The registry of modes, one that comes from outside the package, and what kernels cannot have."""

import json

import numpy as np
import pages
import pytest
import tensorflow as tf
from training import assert_kept_alike

import elastic_tf as et
from elastic_tf import plan
from elastic_tf.memory.ops import graph_flops
from elastic_tf.timing.step import StepFunction
from elastic_tf.train.engine import modes

pytestmark = pytest.mark.usefixtures("deterministic")
L = tf.keras.layers


def model(*layers, optimizer=None):
    tf.keras.utils.set_random_seed(0)
    layers = layers or [L.Conv2D(4, 3, padding="same", use_bias=False)]
    layers = [L.Input((6, 6, 3)), *layers, L.GlobalAveragePooling2D(), L.Dense(1)]
    made = et.ElasticModel.from_model(tf.keras.Sequential(layers))
    made.compile(optimizer or tf.keras.optimizers.SGD(0.1), "mse")
    return made


def batch(count=4):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 6, 6, 3)).astype(np.float32), np.ones((count, 1), np.float32)


@pytest.fixture
def half_batch():
    """The mode of the guide, as it stands there."""
    texts = pages.blocks(pages.DOCS / "guides" / "modes.md", "python")
    (text,) = (text for text in texts if "register" in text)
    exec(text, {})
    yield
    del modes.MODES[100], plan.NAMES[100]


def test_a_mode_from_outside_trains_is_counted_and_written(half_batch):
    made, exact, (x, y) = model(), model(), batch()
    chosen = et.Plan.full(3).with_mode("half_batch", np.array([True, False, False]))
    assert et.Plan.from_json(json.loads(json.dumps(chosen.to_json()))) == chosen
    before = made.tensors[0].numpy()
    made.set_plan(chosen)
    made.train_on_batch(x, y)
    # the loss on the first half alone has twice the gradient that these samples have in the whole
    exact.train_on_batch(x[:2], y[:2])
    moved, expected = (m.tensors[0].numpy() - before for m in (made, exact))
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-7)

    costs = [graph_flops(StepFunction(made, p).graph(batch())) for p in (None, chosen)]
    gradient = 2 * 4 * 36 * 27 * 4  # operations of the exact one
    weights = 4 * 27 * 4  # a few operations each make the kernel with twice its gradient
    assert 0 <= costs[1] - (costs[0] - gradient * modes.MODES[100].keeps) <= weights


def test_a_mode_needs_a_name_and_a_code_of_its_own():
    for name, code in (
        *(("mine", 2), ("exact", 100), ("mine", 128), ("mine", 0)),
        *(("filtered:2", 2), ("exact", 1), ("mine", 100.5)),
    ):
        with pytest.raises(ValueError, match=rf"Received: '?(mine|exact|filtered:2|{code})"):
            modes.register(modes.Mode(name, code, modes.kernel_of, lambda layer: None))
    with pytest.raises(ValueError, match="filtered:2.*Received: name='filtered:3'"):
        et.Plan.full(2).with_mode("filtered:3", np.array([True, False]))


def some(made, channels):
    return et.Plan.full(len(made.tensors)).with_channels("channels:1/2", {0: channels})


@pytest.mark.parametrize(
    ("layers", "channels", "received"),
    [
        ([], [0, 1, 2], "Received: 3 up to number 2"),
        ([], [1, 4], "Received: 2 up to number 4"),
        ([L.Conv2D(4, 3, kernel_regularizer="l2")], [0, 1], "'channels:1/2' for"),
        ([L.DepthwiseConv2D(3, depthwise_constraint="max_norm")], [0], "'channels:1/2' for"),
        ([L.Conv2D(6, 3, groups=3)], [0, 1, 2], "'channels:1/2' for"),
        ([L.Conv2D(1, 3)], [0], "'channels:1/2' for"),
    ],
)
def test_channels_that_a_kernel_cannot_have_are_refused(layers, channels, received):
    made = model(*layers)
    with pytest.raises(ValueError, match=received):
        made.set_plan(some(made, channels))


def test_channels_are_refused_where_an_optimizer_keeps_no_number_for_each_weight():
    made = model(optimizer=tf.keras.optimizers.Adafactor())
    made.set_plan(some(made, [0, 1]))
    with pytest.raises(ValueError, match=r"Received: .* of shape \(3, 3, 3\)"):
        made.train_on_batch(*batch())
    made.set_plan(None)
    made.train_on_batch(*batch())  # whole kernels can be trained


@pytest.mark.filterwarnings("error:.*[Ee]very step")  # where nothing can be kept
def test_channels_are_trained_on_what_is_kept_of_samples():
    def made():
        tf.keras.utils.set_random_seed(0)
        found = model(L.DepthwiseConv2D(3, depth_multiplier=2), L.Conv2D(4, 1))
        codes = np.where(np.arange(6) > 2, plan.EXACT, plan.FROZEN)
        codes[2] = plan.code_of("channels:1/2")
        found.set_plan(et.Plan(codes, {2: [1, 2]}))
        return found

    assert_kept_alike(made, batch(8))

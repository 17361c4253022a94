"""Table 2 of Yang, Li, Marculescu, Gradient Filtering, CVPR 2023."""

import functools

import numpy as np
import pytest
import resnets
import tensorflow as tf
from related.gradient_filtering import gradient_costs

import elastic_tf as et

BUILD = {
    "resnet18": lambda: resnets.resnet(18),
    "resnet34": lambda: resnets.resnet(34, classes=10),  # the printed FLOPs are of CIFAR-10
    "mobilenet_v2": lambda: tf.keras.applications.MobileNetV2(weights=None),
}
L = tf.keras.layers


@functools.cache
def network(name: str) -> et.ElasticModel:
    return et.ElasticModel.from_model(BUILD[name]())


def last(model: et.ElasticModel, count: int) -> np.ndarray:
    """The last convolutions, shortcuts left out, and the classifier."""
    names = [tensor.name for tensor in model.tensors]
    is_kernel = np.array(["kernel" in name and "shortcut" not in name for name in names])
    kernels = np.flatnonzero(is_kernel)[-count - 1 :]
    return np.isin(np.arange(len(names)), kernels)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "vanilla", "vanilla_kib", "filtered", "filtered_kib"),
    [
        ("resnet18", 2, 489.20e6, 196.0, 28.32e6, 64.0),
        ("resnet18", 4, 1.14e9, 490.0, 61.53e6, 112.0),
        pytest.param("resnet34", 4, 1.21e9, 392.0, 64.07e6, 128.0, marks=pytest.mark.hours),
        pytest.param("mobilenet_v2", 2, 113.68e6, 245.0, 39.27e6, 80.0, marks=pytest.mark.hours),
        pytest.param("mobilenet_v2", 4, 160.00e6, 459.375, 53.96e6, 150.0, marks=pytest.mark.hours),
    ],
)
def test_the_numbers_of_the_paper_are_met(
    name, count, vanilla, vanilla_kib, filtered, filtered_kib
):
    model = network(name)
    mask = last(model, count)
    head = np.arange(len(mask)) >= len(mask) - 2
    exact = gradient_costs(model, mask)
    assert exact.kept[~head].sum() == vanilla_kib * 1024
    assert exact.flops.sum() == pytest.approx(vanilla, rel=5e-3 if vanilla > 1e9 else 2e-3)
    costs = gradient_costs(model, et.Plan.from_mask(mask).filtered(2, mask & ~head))
    assert costs.kept[~head].sum() == filtered_kib * 1024
    assert costs.flops.sum() == pytest.approx(filtered, rel=2e-3)


def test_a_gradient_by_inputs_is_counted_where_something_before_is_trained():
    inputs = L.Input((8, 8, 3))
    x = L.Conv2D(4, 3, padding="same", name="first")(inputs)
    x = L.DepthwiseConv2D(3, 2, padding="same", name="second")(x)
    model = tf.keras.Model(inputs, L.Dense(2, name="head")(L.GlobalAveragePooling2D()(x)))
    model = et.ElasticModel.from_model(model)
    found = gradient_costs(model)
    own = 3 * 4 * (10 * 64 - 1)
    depthwise = 4 * (10 * 16 - 1)
    assert found.flops.tolist() == [own, 0, depthwise + 2 * 4 * 16 * 9, 0, 8 + 2 * 8, 0]
    assert found.kept.tolist() == [4 * 8 * 8 * 3, 0, 4 * 8 * 8 * 4, 0, 4 * 4, 0]
    assert gradient_costs(model, np.arange(6) == 2).flops.tolist() == [0, 0, depthwise, 0, 16, 0]
    filtered = gradient_costs(model, et.Plan.full(6).filtered(4, np.arange(6) == 2))
    # one patch: 4 products and as many sums of kernels, means of 16 pixels
    assert filtered.flops[2] == 4 * (2 - 1) + 4 * (16 + 1) + 4 * (2 - 1) + 4 * 8
    assert filtered.kept[2] == 4 * 4

"""Networks whose channels can be removed, and channels made removable."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from networks import CLASSES, IMAGE, L, crossentropy
from related import prunetrain
from related.prunetrain import groups
from related.prunetrain.groups import channel_groups


def _normalised(x: Any, filters: int, kernel: int, name: str, **options: Any) -> Any:
    x = L.Conv2D(filters, kernel, padding="same", use_bias=False, name=name, **options)(x)
    return L.BatchNormalization(name=f"{name}_bn")(x)


def _scrambled(model: tf.keras.Model) -> tf.keras.Model:
    """Statistics, offsets and biases that are not those of a new model."""
    rng = np.random.default_rng(1)
    for weight in model.weights:
        if len(weight.shape) == 1:
            weight.assign(weight + rng.uniform(0.1, 0.5, weight.shape))
    return model


def block() -> tf.keras.Model:
    """One residual block."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input(IMAGE, name="image")
    x = L.Conv2D(6, 3, activation="relu", name="stem")(inputs)
    y = L.ReLU(name="one_relu")(_normalised(x, 8, 3, "one_a"))
    x = L.ReLU(name="add_relu")(L.Add(name="add")([x, _normalised(y, 6, 3, "one_b")]))
    x = L.Dense(CLASSES, name="head")(L.GlobalAveragePooling2D(name="pool")(x))
    return _scrambled(tf.keras.Model(inputs, x, name="block"))


def residual() -> tf.keras.Model:
    """A trunk that two blocks add to, an inverted bottleneck, a shortcut with a kernel."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input(IMAGE, name="image")
    x = L.ReLU()(_normalised(L.Rescaling(0.5, offset=-1.0)(inputs), 5, 3, "stem"))
    y = L.ReLU(6.0)(_normalised(x, 6, 3, "one_a"))
    x = L.ReLU()(L.Add()([x, _normalised(y, 5, 3, "one_b")]))
    y = L.ReLU(6.0)(_normalised(x, 8, 1, "expand"))
    y = L.DepthwiseConv2D(3, padding="same", use_bias=False, name="depthwise")(y)
    y = L.ReLU(6.0)(L.BatchNormalization(name="depthwise_bn")(y))
    x = L.Add()([x, _normalised(y, 5, 1, "project")])
    y = _normalised(x, 7, 3, "two", strides=2)
    x = L.Activation("swish")(L.Add()([_normalised(x, 7, 1, "shortcut", strides=2), y]))
    x = L.GlobalAveragePooling2D()(x)
    return _scrambled(tf.keras.Model(inputs, L.Dense(CLASSES, name="head")(x), name="residual"))


def branches() -> tf.keras.Model:
    """Concatenation, gates, a layer called twice, dense layers behind pixels."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input(IMAGE, name="image")
    x = inputs[..., ::-1] / 2.0
    x = L.Conv2D(6, 3, activation="relu", name="stem")(L.ZeroPadding2D(1)(x))
    gate = L.Reshape((1, 1, 6))(L.GlobalAveragePooling2D()(x))
    gate = L.Conv2D(4, 1, activation="swish", name="squeeze")(gate)
    x = L.Multiply()([x, L.Conv2D(6, 1, activation="sigmoid", name="gate")(gate)])
    shared = L.Conv2D(6, 3, padding="same", name="shared")
    x = L.Concatenate()([L.Conv2D(4, 1, name="side")(x), shared(shared(x))])
    x = L.Conv2D(5, 1, activation="tanh", name="mix")(L.MaxPooling2D()(L.LeakyReLU()(x)))
    x = L.Dense(9, activation="relu", name="hidden")(L.Flatten()(x))
    x = L.Dropout(0.5, seed=1)(x)
    return _scrambled(tf.keras.Model(inputs, L.Dense(CLASSES, name="head")(x), name="branches"))


NETWORKS = {"residual": residual, "branches": branches}


def labels_of(network: tf.keras.Model, layer: str) -> np.ndarray:
    """The labels of a layer's output channels."""
    return channel_groups(network).sites[layer].width[1]


def is_free(network: tf.keras.Model, layer: str = "before") -> bool:
    """Whether output channels of a layer can be removed."""
    site = channel_groups(network).sites[layer]
    return site.width is not None and not channel_groups(network).pinned[site.width[1]].any()


def shrink(network: tf.keras.Model, share: float = 0.4, factor: float = 0.0) -> np.ndarray:
    """Scale all groups of some channels; returns True at their labels."""
    channels = channel_groups(network)
    sides = list(groups.sides(network, channels))
    present = np.unique(np.concatenate([labels for _, _, labels in sides]))
    small = np.zeros(len(channels.pinned), dtype=bool)
    small[present] = np.random.default_rng(2).random(len(present)) < share
    small &= ~channels.pinned
    for kernel, axis, labels in sides:
        value = kernel.numpy()
        np.moveaxis(value, axis, 0)[small[labels]] *= factor
        kernel.assign(value)
    return small


def compiled(source: Any = block, optimizer: Any = None, **options: Any) -> Any:
    model = prunetrain.adapt(source())
    model.compile(
        optimizer or tf.keras.optimizers.SGD(0.05, momentum=0.9), crossentropy(), **options
    )
    return model


def assert_close(one: Any, other: Any) -> None:
    """Equal but for the order in which float32 numbers are summed."""
    np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * float(np.abs(other).max()))

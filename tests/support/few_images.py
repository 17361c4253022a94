"""A tiny network of features, and images of a few classes that it can learn to tell apart."""

import numpy as np
import tensorflow as tf
from related import tinytrain

L = tf.keras.layers
CLASSES, EACH, SIDE = 6, 12, 8


def network() -> tf.keras.Model:
    """Two convolutions and a depthwise one, with batch normalisation: 9 tensors."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((SIDE, SIDE, 1))
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3, use_bias=False, name="first")(inputs)))
    x = L.ReLU()(L.BatchNormalization()(L.DepthwiseConv2D(3, use_bias=False, name="depth")(x)))
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(16, 1, use_bias=False, name="last")(x)))
    return tf.keras.Model(inputs, L.Flatten()(x))


def images(count: int = CLASSES, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """A pattern for each class, and noise."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(count), EACH)
    patterns = rng.normal(size=(count, SIDE, SIDE, 1))
    noises = rng.normal(size=(len(labels), SIDE, SIDE, 1))
    return (patterns[labels] + noise * noises).astype(np.float32), labels + 10


def task(**options: object) -> tinytrain.Episode:
    return tinytrain.episodes(images(), (4, 4), query=4, shots=4, **options)[0]

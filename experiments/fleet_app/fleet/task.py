"""The network and the data of a device."""

from __future__ import annotations

import functools

import numpy as np

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import tensorflow as tf

CLASSES, SIZE, BATCH = 10, 32, 16


def network() -> et.ElasticMixin:
    """The same weights on every device: here drawn by NumPy, else from a file that all have."""
    layers = tf.keras.layers
    inputs = layers.Input((SIZE, SIZE, 1))
    x = layers.Rescaling(1 / 255)(inputs)
    for filters in (16, 32, 64, 64):
        x = layers.Conv2D(filters, 3, 2, padding="same", activation="relu")(x)
    model = et.ElasticModel(inputs, layers.Dense(CLASSES)(layers.Flatten()(x)))
    rng = np.random.default_rng(0)
    model.set_weights([drawn(rng, value) for value in model.get_weights()])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(et.optimizers.adam(1e-3), loss, metrics=["accuracy"])
    return model


def drawn(rng: np.random.Generator, value: np.ndarray) -> np.ndarray:
    """Kernels as He et al. begin with them; vectors as they are."""
    if value.ndim < 2:
        return value
    return rng.normal(0.0, np.sqrt(2.0 / np.prod(value.shape[:-1])), value.shape)


@functools.cache
def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """All of them; a real device has its own images."""
    return et.data.digits(image_size=SIZE)


def samples(partition: int, partitions: int) -> et.Samples:
    """The images of one device."""
    x, y = digits()[0]
    return et.Samples(x[partition::partitions], y[partition::partitions], batch_size=BATCH)


def test_images(partition: int = 0, partitions: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Those that a device, or the server, judges by."""
    x, y = digits()[1]
    return x[partition::partitions], y[partition::partitions]

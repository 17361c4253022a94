"""Tiny networks and batches for the tests that train."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.memory.ops import graph_flops
from elastic_tf.timing.step import StepFunction
from elastic_tf.train import optimizers
from elastic_tf.train.batches import as_batch

CLASSES = 3
IMAGE = (6, 6, 2)
SAMPLES = 20  # with a batch size of 8 the last batch is smaller

L = tf.keras.layers
K = tf.keras.optimizers

OPTIMIZERS = {
    "sgd": lambda: K.SGD(0.05, momentum=0.9),
    "adam": lambda: K.Adam(1e-2),
    "sgdw": lambda: optimizers.sgdw(0.05, momentum=0.9, weight_decay=1e-3),
}
MORE_OPTIMIZERS = {
    **OPTIMIZERS,
    "adamw": lambda: K.AdamW(1e-2, weight_decay=1e-2),
    "rmsprop": lambda: K.RMSprop(1e-2, momentum=0.5, centered=True),
    "schedule": lambda: K.SGD(K.schedules.CosineDecay(0.1, 10), momentum=0.9),
    "clipped": lambda: K.SGD(0.1, clipnorm=0.01),
    "clipped_together": lambda: K.SGD(0.1, global_clipnorm=0.01),
    "scaled": lambda: tf.keras.mixed_precision.LossScaleOptimizer(K.Adam(1e-2)),
    "scaled_fused": lambda: tf.keras.mixed_precision.LossScaleOptimizer(optimizers.adam(1e-2)),
    "scaled_sgdw": lambda: tf.keras.mixed_precision.LossScaleOptimizer(optimizers.sgdw(0.05)),
}


@contextlib.contextmanager
def half_precision() -> Iterator[None]:
    """What is built inside computes in half precision."""
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


def shared_state(optimizer: Any) -> list[tf.Variable]:
    """What an optimizer holds in plain Keras too."""
    own = getattr(optimizers.unwrapped(optimizer), "missed_steps", None)
    return [variable for variable in optimizers.state(optimizer) if variable is not own]


def network() -> tf.keras.Model:
    """Two convolutions with batch normalisation and a dense head: 10 tensors, 4 buffers."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input(IMAGE, name="image")
    x = L.Conv2D(3, 3, name="conv1")(inputs)
    x = L.BatchNormalization(name="bn1")(x)
    x = L.Activation("relu", name="act1")(x)
    x = L.Conv2D(4, 3, name="conv2")(x)
    x = L.BatchNormalization(name="bn2")(x)
    x = L.Flatten(name="flat")(x)
    x = L.Dense(CLASSES, name="head")(x)
    return tf.keras.Model(inputs, L.Activation("linear", dtype="float32", name="out")(x))


def block() -> tf.keras.Model:
    """A convolution with batch normalisation and a dense head: 6 tensors, 2 buffers."""
    tf.keras.utils.set_random_seed(0)
    layers = [L.Conv2D(3, 3, name="conv"), L.BatchNormalization(name="bn"), L.Flatten()]
    return tf.keras.Sequential([L.Input(IMAGE), *layers, L.Dense(CLASSES, name="head")])


def chain(activation: str | None = None) -> tf.keras.Model:
    """Five dense layers, 10 tensors: for tests to which it is all the same what is trained."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input(IMAGE)
    x = L.Flatten()(inputs)
    for k in range(5):
        x = L.Dense(CLASSES, activation, name=f"dense{k}")(x)
    return tf.keras.Model(inputs, x)


def images(*, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(1.0, 2.0, (SAMPLES, *IMAGE)).astype(np.float32)
    return x, rng.integers(0, CLASSES, SAMPLES)


def crossentropy() -> tf.keras.losses.Loss:
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def fit(model: tf.keras.Model, **options: Any) -> dict[str, list[float]]:
    """Two epochs of `model` on `images`, the same each time; returns the history."""
    tf.keras.utils.set_random_seed(7)
    data = {"x": images()[0], "y": images()[1], "batch_size": 8, "epochs": 2}
    return model.fit(**{**data, "shuffle": False, "verbose": 0, **options}).history


def values(variables: list[tf.Variable]) -> list[bytes]:
    """The bits of each variable."""
    return [stack.raw(variable).numpy().tobytes() for variable in variables]


def mask_of(model: Any, *starts: str) -> np.ndarray:
    """The mask that trains the tensors whose names start with one of `starts`.

    Keras 3 puts the name of a sequential model before those of its layers.
    """
    names = (tensor.name.removeprefix(f"{model.name}/") for tensor in model.tensors)
    return np.array([name.startswith(starts) for name in names])


def step_flops(model: Any, x: np.ndarray, y: np.ndarray, mask: np.ndarray | None = None) -> int:
    """Operations of a training step on that batch."""
    mask = np.ones(len(model.tensors), bool) if mask is None else mask
    return graph_flops(StepFunction(model, mask).graph(as_batch(x, y)))

"""What the parts of bench.py share: networks and noise, plans, steps in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf.app.commands import harness
from elastic_tf.timing.step import StepFunction, time_anew
from elastic_tf.train.batches import as_batch

# name, width multiplier, input size in pixels
MODELS = (
    ("resnet50", 1.0, 128),
    ("vgg16", 1.0, 128),
    ("mobilenet_v2", 1.0, 128),
    ("vit_ti16", 1.0, 96),
    ("mobilenet", 0.75, 160),
)
DEVICE = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
BATCH, CLASSES = 64 if DEVICE == "GPU:0" else 4, 40


def fresh(name: str, size: int, *, alpha: float = 1.0, optimizer: str = "sgdw") -> et.ElasticModel:
    """A network of the zoo with random weights, the same each time, compiled."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(0)
    network = et.zoo.build(name, classes=CLASSES, input_size=size, alpha=alpha, weights=None)
    return harness.compiled(network, optimizer, 1e-4)


def noise(size: int, batch: int = BATCH, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A batch for such a network."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 255, (batch, size, size, 3)).astype(np.float32)
    return x, rng.integers(0, CLASSES, batch)


def of_models(
    measure: Callable[..., Any], models: Sequence[tuple[Any, ...]], names: Sequence[str] | None
) -> dict[str, Any]:
    """What `measure` says of each model, (name, ...), or of those named, by their names."""
    return {model[0]: measure(*model) for model in models if names is None or model[0] in names}


def random_mask(rng: np.random.Generator, count: int) -> np.ndarray:
    """Depth uniform, density 0.1 to 1."""
    deepest, density = rng.integers(count), rng.uniform(0.1, 1.0)
    mask = (np.arange(count) >= deepest) & (rng.random(count) < density)
    mask[deepest] = True
    return mask


def measure_ratios(
    model: et.ElasticModel, batch: tuple[Any, Any], plans: Sequence[Any], *, repeats: int
) -> list[float]:
    """Step time under each plan / full step time, medians of `repeats` pairs in turn."""
    data = as_batch(*batch)
    et.optimizers.build(model.optimizer, model.trainable_variables)
    full = StepFunction(model, np.ones(len(model.tensors), bool))
    ratios = []
    for plan in plans:
        steps = time_anew((full, StepFunction(model, plan)), data, repeats=repeats)
        ratios.append(float(np.median(steps[:, 1] / steps[:, 0])))
    return ratios


class StepTimes(tf.keras.callbacks.Callback):
    """Seconds of each step of a `fit`, by the clock."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._started)


def allocated_bytes(what: str) -> int:
    """Of TensorFlow's allocator: "current" or "peak"."""
    return tf.config.experimental.get_memory_info(DEVICE)[what]

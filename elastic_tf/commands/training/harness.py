"""What trainings and experiments share: a compiled model and its learning rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf.budget.course import WARM_UP


def loss() -> tf.keras.losses.Loss:
    """Cross-entropy of the logits that the zoo's models return."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model: tf.keras.Model, optimizer: str, learning_rate: Any) -> et.ElasticModel:
    """`model` if it is elastic, or one that shares its weights; with a new optimizer."""
    is_elastic = isinstance(model, et.ElasticMixin)
    elastic = model if is_elastic else et.ElasticModel.from_model(model)
    chosen = et.optimizers.by_name(optimizer, learning_rate)
    elastic.compile(chosen, loss(), metrics=["accuracy"])
    return elastic


def model_and_batch(settings: Any) -> tuple[et.ElasticModel, tuple[np.ndarray, np.ndarray]]:
    """The network of the command `profile` with random weights, and a batch of noise."""
    names = ("classes", "input_size", "alpha", "bn_training")
    network = et.zoo.build(settings.model, **{name: getattr(settings, name) for name in names})
    model = compiled(network, settings.optimizer, 1e-4)
    rng = np.random.default_rng(0)
    images = rng.uniform(0, 255, (settings.batch_size, *model.input_shape[1:])).astype(np.float32)
    return model, (images, rng.integers(0, settings.classes, settings.batch_size))


def rate(schedule: str, learning_rate: float, steps: int, *, warm_up: float | None = 0.0) -> Any:
    """The learning rate over a run of `steps` steps: "cosine" to zero, or "constant"."""
    if schedule == "constant":
        return learning_rate
    warm_up = WARM_UP if warm_up is None else warm_up
    return et.optimizers.cosine(learning_rate, steps, warm_up=warm_up)

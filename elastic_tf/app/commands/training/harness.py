"""What trainings and experiments share: a network by its settings, and a compiled model."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import tensorflow as tf

import elastic_tf as et
from elastic_tf.train.head.targets import classifier_of

FILE = ".keras"  # the end of a file of a network


def fitted(settings: Any) -> Any:
    """The settings, with the input size of the network where that is a file."""
    if not settings.model.endswith(FILE):
        return settings
    size = input_shape(settings)[0]
    if size != settings.input_size:
        print(f"Images become {size} x {size} pixels, as '{settings.model}' takes them.")
    return dataclasses.replace(settings, input_size=size)


def input_shape(settings: Any) -> tuple[int, int]:
    """Height, which is the width, and channels of the images that the network takes."""
    size = settings.input_size
    if not settings.model.endswith(FILE):
        return size, et.zoo.ARCHITECTURES[settings.model].channels
    shape = _read(settings.model)["shape"]
    _, height, width, channels = shape if isinstance(shape, tuple) and len(shape) == 4 else [0] * 4
    if (height or size) != (width or size) or channels not in (1, 3):
        raise ValueError(
            "`model` must take square images of 1 or 3 channels, which come last. Received: "
            f"'{settings.model}' with inputs of {shape}. Call et.finetune for others."
        )
    return height or size, channels


@functools.lru_cache(maxsize=1)
def _read(file: str) -> dict[str, Any]:
    """The shape of what the network in a file takes, and the network for whoever asks first."""
    model = tf.keras.models.load_model(file)
    return {"shape": model.input_shape, "network": model}


def network(settings: Any, classes: int, weights: Any = None) -> tf.keras.Model:
    """The network that settings of a command name; `weights` may be the word "none".

    Of a file, with its weights and a new head.
    """
    if settings.model.endswith(FILE):
        held = _read(settings.model).pop("network", None)
        return classifier_of(held or tf.keras.models.load_model(settings.model), classes)
    names = ("input_size", "alpha", "bn_training")
    options = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
    weights = None if weights == "none" else weights
    return et.zoo.build(settings.model, classes=classes, weights=weights, **options)


def loss() -> tf.keras.losses.Loss:
    """Cross-entropy of the logits that the zoo's models return."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model: tf.keras.Model, optimizer: str, learning_rate: Any) -> et.ElasticModel:
    """`model` if it is elastic, or one that shares its weights; with a new optimizer."""
    elastic = et.ElasticModel.from_model(model)
    chosen = et.optimizers.by_name(optimizer, learning_rate)
    elastic.compile(chosen, loss(), metrics=["accuracy"])
    return elastic

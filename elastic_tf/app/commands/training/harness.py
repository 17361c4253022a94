"""What trainings and experiments share: a network by its settings, and a compiled model."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import elastic_tf as et


def network(settings: Any, classes: int, weights: Any = None) -> tf.keras.Model:
    """The network that settings of a command name; `weights` may be the word "none"."""
    names = ("input_size", "alpha", "bn_training")
    options = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
    weights = None if weights == "none" else weights
    return et.zoo.build(settings.model, classes=classes, weights=weights, **options)


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

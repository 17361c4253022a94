"""Layers of a frozen backbone that keep less for the backward pass."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf.train.engine.modes import sparing
from related import graph


@tf.keras.utils.register_keras_serializable(package="elastic_tf")
class StoredNormalization(tf.keras.layers.BatchNormalization):
    """Batch normalisation by its stored statistics, in training too.

    Keeps its input only where gamma is trained.
    """

    def call(self, inputs: tf.Tensor, training: Any = None, mask: Any = None) -> tf.Tensor:
        """Bit for bit as `BatchNormalization` with `training=False`."""
        del training, mask
        return sparing.stored_normalization(self, inputs)


@tf.keras.utils.register_keras_serializable(package="elastic_tf")
class MaskedReLU(tf.keras.layers.ReLU):
    """ReLU up to `max_value` (None or 6) that keeps one byte a number: whether it lies inside."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Bit for bit as `tf.nn.relu` or `tf.nn.relu6`."""
        return sparing.masked_relu(inputs, self.max_value)


def in_place_of(layer: tf.keras.layers.Layer, *, is_stored: bool) -> tf.keras.layers.Layer:
    """A new layer that computes the same, a sparing one if there is one for it.

    A batch normalisation has one where it `is_stored`: uses its stored statistics in training.
    """
    if is_stored and sparing.can_spare(layer):
        return StoredNormalization.from_config(layer.get_config())
    cut = sparing.rectifier(layer)
    if cut is not None:
        return MaskedReLU(cut[0], name=layer.name, dtype=layer.dtype_policy)
    return graph.anew(layer)

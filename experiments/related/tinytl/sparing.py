"""Layers of a frozen backbone that compute what Keras's do and keep less for the backward pass.

Training a bias needs no activations by itself: the gradient passes a normalisation by stored
statistics as a multiplication, and ReLU as a mask (Cai et al., TinyTL, NeurIPS 2020, Sec. 3). The
gradients that TensorFlow 2.15 has for them keep a float for every number all the same.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from related import graph

L = tf.keras.layers

_RELUS = {tf.nn.relu: None, tf.keras.activations.relu: None, tf.nn.relu6: 6.0}


@tf.keras.saving.register_keras_serializable(package="elastic_tf")
class StoredNormalization(tf.keras.layers.BatchNormalization):
    """Batch normalisation by its stored statistics, in training too.

    Keeps its input only where gamma is trained.
    """

    def call(self, inputs: tf.Tensor, training: Any = None, mask: Any = None) -> tf.Tensor:
        """Bit for bit as `BatchNormalization` with `training=False`."""
        del training, mask
        mean, variance = tf.identity(self.moving_mean), tf.identity(self.moving_variance)
        gamma = tf.ones_like(mean) if self.gamma is None else tf.identity(self.gamma)
        beta = tf.zeros_like(mean) if self.beta is None else tf.identity(self.beta)

        @tf.custom_gradient
        def normalised(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
            y, _, _ = tf.compat.v1.nn.fused_batch_norm(
                x, gamma, beta, mean, variance, epsilon=self.epsilon, is_training=False
            )

            def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
                per_deviation = tf.math.rsqrt(variance + self.epsilon)
                dx = dy * tf.cast(gamma * per_deviation, dy.dtype)
                dy = tf.cast(dy, gamma.dtype)
                # pruned from the graph where gamma is not trained
                deviations = (tf.cast(x, gamma.dtype) - mean) * per_deviation
                return dx, tf.reduce_sum(dy * deviations, [0, 1, 2]), tf.reduce_sum(dy, [0, 1, 2])

            return y, gradient

        return normalised(inputs, gamma, beta)


@tf.keras.saving.register_keras_serializable(package="elastic_tf")
class MaskedReLU(tf.keras.layers.ReLU):
    """ReLU up to `max_value` (None or 6) that keeps one byte a number: whether it lies inside."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Bit for bit as `tf.nn.relu` or `tf.nn.relu6`."""

        @tf.custom_gradient
        def masked(x: tf.Tensor) -> Any:
            y = tf.nn.relu(x) if self.max_value is None else tf.nn.relu6(x)
            inside = y > 0 if self.max_value is None else (y > 0) & (y < 6.0)
            return y, lambda dy: tf.where(inside, dy, tf.zeros_like(dy))

        return masked(inputs)


def in_place_of(layer: tf.keras.layers.Layer, *, is_stored: bool) -> tf.keras.layers.Layer:
    """A new layer that computes the same, a sparing one if there is one for it.

    A batch normalisation has one where it `is_stored`: uses its stored statistics in training.
    """
    kind = type(layer)
    if kind is L.BatchNormalization and is_stored and layer.fused and list(layer.axis) == [3]:
        return StoredNormalization.from_config(layer.get_config())
    is_plain = kind is L.ReLU and not (layer.negative_slope or layer.threshold)
    if is_plain and layer.max_value in (None, 6.0):
        return MaskedReLU.from_config(layer.get_config())
    if kind is L.Activation and layer.activation in _RELUS:
        limit = _RELUS[layer.activation]
        return MaskedReLU(limit, name=layer.name, dtype=layer._dtype_policy)
    return graph.anew(layer)

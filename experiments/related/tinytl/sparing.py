"""Layers that compute what Keras's do and keep less for the backward pass.

A rectifier's gradient needs to know which numbers lie inside, a normalisation's by stored
statistics nothing of its inputs unless its scale is trained. TensorFlow 2.15 keeps a float for
every number all the same: the output of a rectifier, which is the input of the next convolution,
and the input of a normalisation. Where a mode drops the inputs of a convolution, these would stay.

Source: Cai et al., TinyTL, NeurIPS 2020, Sec. 3.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf import stack
from related import graph

L = tf.keras.layers
_RELU6 = getattr(tf.keras.activations, "relu6", tf.nn.relu6)  # of Keras 3
# Rectifiers and the number that they cut at.
_RELUS = {tf.nn.relu: None, tf.keras.activations.relu: None, tf.nn.relu6: 6.0, _RELU6: 6.0}


@tf.keras.utils.register_keras_serializable(package="elastic_tf")
class MaskedReLU(L.ReLU):
    """ReLU up to `max_value` (None or 6) that keeps one byte a number: whether it lies inside."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Bit for bit as `tf.nn.relu` or `tf.nn.relu6`."""

        @tf.custom_gradient
        def masked(x: tf.Tensor) -> Any:
            y = tf.nn.relu(x) if self.max_value is None else tf.nn.relu6(x)
            inside = y > 0 if self.max_value is None else (y > 0) & (y < self.max_value)
            return y, lambda dy: tf.where(inside, dy, tf.zeros_like(dy))

        return masked(inputs)


@tf.keras.utils.register_keras_serializable(package="elastic_tf")
class StoredNormalization(L.BatchNormalization):
    """Batch normalisation by its stored statistics, in training too.

    Keeps its input only where gamma is trained.
    """

    def call(self, inputs: tf.Tensor, training: Any = None, mask: Any = None) -> tf.Tensor:
        """Bit for bit as `BatchNormalization` with `training=False`."""
        mean, variance, gamma, beta = (
            None if one is None else tf.identity(stack.raw(one))
            for one in (self.moving_mean, self.moving_variance, self.gamma, self.beta)
        )
        gamma = tf.ones_like(mean) if gamma is None else gamma
        beta = tf.zeros_like(mean) if beta is None else beta

        @tf.custom_gradient
        def normalised(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
            y, _, _ = tf.compat.v1.nn.fused_batch_norm(
                x, gamma, beta, mean, variance, epsilon=self.epsilon, is_training=False
            )

            def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
                per_deviation = tf.math.rsqrt(variance + self.epsilon)
                dx = dy * tf.cast(gamma * per_deviation, dy.dtype)
                # pruned from the graph where gamma is not trained
                of_gamma = tf.raw_ops.FusedBatchNormGradV3(
                    y_backprop=dy,
                    x=x,
                    scale=gamma,
                    reserve_space_1=mean,
                    reserve_space_2=variance,
                    reserve_space_3=tf.zeros([0]),
                    epsilon=self.epsilon,
                    is_training=False,
                ).scale_backprop
                return dx, of_gamma, tf.reduce_sum(tf.cast(dy, gamma.dtype), [0, 1, 2])

            return y, gradient

        return normalised(inputs, gamma, beta)


def in_place_of(layer: L.Layer, *, is_stored: bool) -> L.Layer:
    """A new layer that computes the same, a sparing one if there is one for it.

    A batch normalisation has one where it `is_stored`: uses its stored statistics in training.
    """
    is_usual = type(layer) in stack.PLAIN_NORMALISATIONS and stack.normalises_last(layer)
    if is_stored and is_usual:
        return StoredNormalization.from_config(layer.get_config())
    options = {"name": layer.name, "dtype": layer.dtype_policy}
    is_relu = type(layer) is L.ReLU and not (layer.negative_slope or layer.threshold)
    if is_relu and layer.max_value in (None, 6.0):
        return MaskedReLU(layer.max_value, **options)
    if type(layer) is L.Activation and layer.activation in _RELUS:
        return MaskedReLU(_RELUS[layer.activation], **options)
    return graph.anew(layer)

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

L = tf.keras.layers
_RELU6 = getattr(tf.keras.activations, "relu6", tf.nn.relu6)  # of Keras 3
# Rectifiers and the number that they cut at.
_RELUS = {tf.nn.relu: None, tf.keras.activations.relu: None, tf.nn.relu6: 6.0, _RELU6: 6.0}


def masked_relu(x: tf.Tensor, most: float | None) -> tf.Tensor:
    """`tf.nn.relu`, or `tf.nn.relu6` where `most` is 6, bit for bit; keeps a byte for a number."""

    @tf.custom_gradient
    def masked(x: tf.Tensor) -> Any:
        y = tf.nn.relu(x) if most is None else tf.nn.relu6(x)
        inside = y > 0 if most is None else (y > 0) & (y < most)
        return y, lambda dy: tf.where(inside, dy, tf.zeros_like(dy))

    return masked(x)


def stored_normalization(layer: Any, inputs: tf.Tensor) -> tf.Tensor:
    """Batch normalisation by stored statistics, bit for bit; keeps inputs for a trained gamma."""
    mean, variance, gamma, beta = (
        None if one is None else tf.identity(stack.raw(one))
        for one in (layer.moving_mean, layer.moving_variance, layer.gamma, layer.beta)
    )
    gamma = tf.ones_like(mean) if gamma is None else gamma
    beta = tf.zeros_like(mean) if beta is None else beta

    @tf.custom_gradient
    def normalised(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        y, _, _ = tf.compat.v1.nn.fused_batch_norm(
            x, gamma, beta, mean, variance, epsilon=layer.epsilon, is_training=False
        )

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            per_deviation = tf.math.rsqrt(variance + layer.epsilon)
            dx = dy * tf.cast(gamma * per_deviation, dy.dtype)
            # pruned from the graph where gamma is not trained
            of_gamma = tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=dy,
                x=x,
                scale=gamma,
                reserve_space_1=mean,
                reserve_space_2=variance,
                reserve_space_3=tf.zeros([0]),
                epsilon=layer.epsilon,
                is_training=False,
            ).scale_backprop
            return dx, of_gamma, tf.reduce_sum(tf.cast(dy, gamma.dtype), [0, 1, 2])

        return y, gradient

    return normalised(inputs, gamma, beta)


def rectifier(layer: Any) -> tuple[float | None] | None:
    """What a layer that is nothing but a rectifier of these kinds cuts at; None of other layers."""
    if type(layer) is L.ReLU and not (layer.negative_slope or layer.threshold):
        return (layer.max_value,) if layer.max_value in (None, 6.0) else None
    if type(layer) is L.Activation and layer.activation in _RELUS:
        return (_RELUS[layer.activation],)
    return None


def can_spare(layer: Any) -> bool:
    """Whether it is a batch normalisation of the usual kind."""
    return type(layer) in stack.PLAIN_NORMALISATIONS and stack.normalises_last(layer)

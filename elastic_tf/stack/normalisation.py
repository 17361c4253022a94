"""Batch normalisation in one op. Keras 3 takes a dozen, which make a step half as long again.

Results are Keras's up to rounding, half precision included: statistics are computed in float32.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_LEAST_EPSILON = 1.001e-5  # that cuDNN takes


def normalised(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    """What a plain batch normalisation of Keras 3 makes of its inputs; it moves its statistics too.

    The last of four axes is normalised in one op. Keras's own runs for other axes and dtypes, with
    a mask or renormalisation, and for statistics of all replicas.
    """
    on_batch = bool(training and layer.trainable)
    if not _has_op(layer, inputs) or mask is not None or (on_batch and layer.synchronized):
        return type(layer).call(layer, inputs, training=training, mask=mask)
    mean, variance = (tf.convert_to_tensor(v) for v in (layer.moving_mean, layer.moving_variance))
    gamma = tf.ones_like(mean) if layer.gamma is None else tf.convert_to_tensor(layer.gamma)
    beta = tf.zeros_like(mean) if layer.beta is None else tf.convert_to_tensor(layer.beta)
    given = (tf.zeros([0]), tf.zeros([0])) if on_batch else (mean, variance)
    found = tf.raw_ops.FusedBatchNormV3(
        x=inputs,
        scale=gamma,
        offset=beta,
        mean=given[0],
        variance=given[1],
        epsilon=layer.epsilon,
        is_training=on_batch,
    )
    if on_batch:
        count = tf.cast(tf.size(inputs) / inputs.shape[3], tf.float64)
        biased = tf.cast((count - 1.0) / count, tf.float32)  # the op gives the unbiased variance
        old, new = layer.momentum, 1.0 - layer.momentum
        layer.moving_mean.assign(mean * old + found.batch_mean * new)
        layer.moving_variance.assign(variance * old + found.batch_variance * biased * new)
    return tf.cast(found.y, layer.compute_dtype)


def normalises_last(layer: Any) -> bool:
    """Whether a batch normalisation normalises the last of four axes, in the usual way."""
    is_last = layer.axis in (3, -1) and layer.input_spec.ndim == 4
    return is_last and not layer.renorm and layer.variable_dtype == "float32"


def _has_op(layer: Any, inputs: Any) -> bool:
    """Whether the op can do what a layer does to its inputs."""
    kinds = (tf.float32, tf.float16, tf.bfloat16)
    return normalises_last(layer) and layer.epsilon >= _LEAST_EPSILON and inputs.dtype in kinds

"""Batch normalisation on stored statistics, folded into the convolution before it.

It is a linear function: a convolution with a scaled kernel and a bias does the work of both, and
TensorFlow runs the activation behind it in the same op. Neither the normalisation nor its gradient
runs then, and what lies between is not kept. Where scale and offset are trained, their gradients
follow from those of the scaled kernel and of the bias.
Results are those of Keras up to rounding. Where there is nothing to fold it into (another layer, a
filtered kernel, channels first), in half precision and in eager execution, Keras's own runs.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.graph import captured, reach, takes
from elastic_tf.stack import attributes
from elastic_tf.train.engine.modes import one_op

_CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")
_ATTRIBUTES = ("strides", "padding", "explicit_paddings", "dilations", "data_format")
_TYPICAL = 16  # samples in a batch whose size is not known when the step is traced
_tracing = threading.local()


def folded(layer: tf.keras.layers.Layer) -> AbstractContextManager[None]:
    """Let a layer in inference mode be folded, if it is a normalisation."""
    if type(layer) not in stack.PLAIN_NORMALISATIONS:
        return contextlib.nullcontext()

    def call(inputs: tf.Tensor, training: Any = None, mask: Any = None) -> tf.Tensor:
        found = convolution_before(layer, inputs)
        if found is not None:
            return _folded(layer, *found)
        return one_op.normalised(layer, inputs, training=training, mask=mask)

    return attributes(layer, call=tf.autograph.experimental.do_not_convert(call))


def convolution_before(
    layer: Any, inputs: tf.Tensor
) -> tuple[tf.Operation, tf.Tensor | None] | None:
    """The convolution, and its bias, that the layer can be folded into; None if there is none."""
    if tf.executing_eagerly() or inputs.dtype != tf.float32 or not stack.normalises_last(layer):
        return None
    bias, op = None, inputs.op
    if op.type == "BiasAdd":
        bias, op = op.inputs[1], op.inputs[0].op
    return (op, bias) if op.type in _CONVOLUTIONS and _pays(op) and _may_change(op) else None


@contextlib.contextmanager
def only_behind(variables: Collection[tf.Variable]) -> Iterator[None]:
    """Fold into convolutions alone whose results depend on one of these variables.

    What lies before is computed once, by a forward pass in which nothing is folded.
    """
    _tracing.variables = variables
    try:
        yield
    finally:
        _tracing.variables = None


def _pays(op: tf.Operation) -> bool:
    """Whether the scaled kernel, which is computed in each step, is no larger than the results."""
    results = op.outputs[0].shape
    sizes = results if None in results[1:] else (results[0] or _TYPICAL, *results[1:])
    return None in sizes or op.inputs[1].shape.num_elements() <= math.prod(sizes)


def _may_change(op: tf.Operation) -> bool:
    variables = getattr(_tracing, "variables", None)
    return variables is None or bool(captured(op.graph, variables).keys() & reach([op], takes))


def _folded(layer: Any, op: tf.Operation, bias: tf.Tensor | None) -> tf.Tensor:
    """What the layer makes of a convolution's results, as another convolution."""
    mean, variance, gamma, beta = map(
        stack.raw, (layer.moving_mean, layer.moving_variance, layer.gamma, layer.beta)
    )
    scale = tf.math.rsqrt(variance + layer.epsilon)
    scale = scale if gamma is None else scale * gamma
    offset = (0.0 if bias is None else bias) - mean
    offset = offset * scale if beta is None else offset * scale + beta
    x, kernel = op.inputs
    options = {name: op.get_attr(name) for name in _ATTRIBUTES}
    if op.type == "DepthwiseConv2dNative":
        scale = tf.reshape(scale, kernel.shape[2:])
    # together: where any of the layer's tensors is trained, the cut lies before the convolution
    kernel, offset = tf.identity_n([kernel * scale, offset])
    convolve = getattr(tf.raw_ops, op.type)
    return tf.nn.bias_add(convolve(input=x, filter=kernel, **options), offset)

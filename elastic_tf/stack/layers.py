"""The seam to layers and their variables."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from elastic_tf.stack.which import IS_KERAS2


@tf.keras.utils.register_keras_serializable("elastic_tf")
class BatchNormalization(tf.keras.layers.BatchNormalization):
    """One that uses stored statistics in training; files of weights have the name of its class.

    Keras 3 overrides the `training=False` of a call in a graph: `fit` passes its own everywhere.
    """

    def __call__(self, inputs: Any, training: Any = None, **options: Any) -> Any:
        """Call it as in inference."""
        del training
        return super().__call__(inputs, training=False, **options)


_LEAST_EPSILON = 1.001e-5  # that cuDNN takes
#: Batch normalisations that compute as Keras does, by class.
PLAIN_NORMALISATIONS: tuple[type, ...] = (tf.keras.layers.BatchNormalization, BatchNormalization)
#: Batch normalisations, and what is derived from them.
NORMALISATIONS = PLAIN_NORMALISATIONS
if IS_KERAS2:
    NORMALISATIONS = (*NORMALISATIONS, tf.keras.layers.experimental.SyncBatchNormalization)


# Variables


def raw(variable: Any) -> tf.Variable:
    """The `tf.Variable` of a variable of Keras.

    Not its `value`, which is a cast copy while a layer is called under mixed precision. Its name is
    Keras's path.
    """
    if IS_KERAS2 or not isinstance(variable, tf.keras.Variable):
        return variable
    found = variable._value
    if hasattr(found, "_handle_name"):  # which lacks the layer, in a model with a `call` of its own
        found._handle_name = f"{variable.path}:0"
    return found


def trainable(part: Any) -> list[tf.Variable]:
    """The trainable variables of a model or a layer, in Keras's order."""
    return [raw(variable) for variable in part.trainable_variables]


def weights(part: Any) -> list[tf.Variable]:
    """The weights of a model or a layer, in Keras's order."""
    return [raw(variable) for variable in part.weights]


def variables_of(part: Any) -> list[tf.Variable]:
    """All that a model, a layer or a metric holds, random generators and metrics too."""
    return [raw(variable) for variable in part.variables]


def own_variables(layer: Any) -> tuple[list[tf.Variable], list[tf.Variable]]:
    """What a layer itself can train, frozen or not, and its buffers."""
    kind = "weights" if IS_KERAS2 else "variables"
    parts = getattr(layer, f"_trainable_{kind}"), getattr(layer, f"_non_trainable_{kind}")
    own, buffers = ([raw(variable) for variable in part] for part in parts)
    return own, buffers


# Layers


def normalises_last(layer: Any) -> bool:
    """Whether a batch normalisation normalises the last of four axes, in the usual way."""
    if IS_KERAS2:
        return bool(layer.fused) and list(layer.axis) == [3]
    is_last = layer.axis in (3, -1) and layer.input_spec.ndim == 4
    return is_last and not layer.renorm and layer.variable_dtype == "float32"


def uses_stored(layer: Any, training: Any) -> bool:
    """Whether a batch normalisation called so normalises by its stored statistics."""
    if IS_KERAS2:
        return layer._get_training_value(training) in (False, 0)
    return not (training and layer.trainable)


def kernel(layer: Any) -> Any:
    """Keras's variable of the kernel of a Dense, Conv2D or DepthwiseConv2D.

    None where the layer of Keras 3 multiplies by something else: with LoRA, or quantised.
    """
    if IS_KERAS2:
        is_depthwise = isinstance(layer, tf.keras.layers.DepthwiseConv2D)
        return layer.depthwise_kernel if is_depthwise else layer.kernel
    is_other = getattr(layer, "lora_enabled", False) or layer.quantization_mode
    return None if is_other else layer.kernel


def in_one_op(layer: Any) -> dict[str, Any]:
    """Attributes by which a layer runs in one op, in the place of several or of one under XLA."""
    if type(layer) in PLAIN_NORMALISATIONS and not IS_KERAS2:
        return {"call": functools.partial(_normalised, layer)}
    if type(layer) is tf.keras.layers.Conv2D and layer.groups > 1:
        if IS_KERAS2:
            return {"_jit_compiled_convolution_op": layer.convolution_op}
        return {"convolution_op": functools.partial(_convolved, layer)}
    return {}


def _normalised(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    """What a plain batch normalisation of Keras 3 makes of its inputs, its statistics moved.

    The last of four axes is normalised in one op: Keras takes a dozen, which make a step half as
    long again. Results are Keras's up to rounding, half precision included: statistics are computed
    in float32. Keras's own runs for other axes and dtypes, with a mask or renormalisation, and for
    statistics of all replicas.
    """
    on_batch = bool(training and layer.trainable)
    has_op = normalises_last(layer) and layer.epsilon >= _LEAST_EPSILON
    has_op = has_op and inputs.dtype in (tf.float32, tf.float16, tf.bfloat16)
    if not has_op or mask is not None or (on_batch and layer.synchronized):
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


def _convolved(layer: Any, inputs: tf.Tensor, kernel: Any) -> tf.Tensor:
    """The convolution of a Conv2D; Keras 3 has XLA compile that of several groups."""
    if layer.data_format != "channels_last":
        return type(layer).convolution_op(layer, inputs, kernel)
    return tf.nn.convolution(
        inputs,
        tf.convert_to_tensor(kernel),
        list(layer.strides),
        layer.padding.upper(),
        dilations=list(layer.dilation_rate),
    )


def layers_behind(layer: Any) -> list[Any]:
    """The layers that take what a layer gives, in graphs of layers."""
    nodes = getattr(layer, "_outbound_nodes", ())
    return [node.outbound_layer if IS_KERAS2 else node.operation for node in nodes]


def output_shapes(layer: Any) -> list[Any]:
    """The shape of what a layer gives, at each of its places in graphs of layers."""
    nodes = getattr(layer, "_inbound_nodes", ())
    return [node.output_shapes if IS_KERAS2 else node.outputs[0].shape for node in nodes]

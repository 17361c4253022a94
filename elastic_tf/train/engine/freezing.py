"""Layers that are left out of training, and normalisations that are folded, in the trace of a step.

A layer with buffers (batch normalisation) of whose own trainable tensors none is trained runs as
Keras runs it with `layer.trainable = False`. For a batch normalisation that is inference mode:
its moving statistics stand still, so the batch must be normalised with them, or the layers after it
would be trained on activations that inference never produces. So a mask and a plain Keras model
with frozen layers train alike, up to the rounding of normalisations that are folded into the
convolutions before them. A layer with buffers but no trainable tensor of its own cannot be left
out: it behaves as in Keras. With `compile(statistics="stored")` all batch normalisations run in
inference mode and are folded, trained or not.

A normalisation on stored statistics is a linear function: a convolution with a scaled kernel and a
bias does the work of both, and TensorFlow runs the activation behind it in the same op. Neither the
normalisation nor its gradient runs then, and what lies between is not kept. Where scale and offset
are trained, their gradients follow from those of the scaled kernel and of the bias. Where there is
nothing to fold it into (another layer, a filtered kernel, channels first), in half precision and in
eager execution, Keras's own runs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.graph import captured, reach, takes
from elastic_tf.stack import attributes
from elastic_tf.train.engine.operations import held, is_held, normalised


@contextlib.contextmanager
def frozen(layers: Sequence[tf.keras.layers.Layer], *, is_left_out: bool = True) -> Iterator[None]:
    """Run `layers` as not trainable; if they are left out, with their own variables protected.

    The protection serves layers that assign to their buffers without asking `self.trainable`:
    the assignment is left out of the graph. Only variable methods are caught, raw ops are not.
    """
    with contextlib.ExitStack() as changes:
        for one in layers:
            change = functools.partial(_freeze, one, is_left_out)
            changes.enter_context(held(("frozen", id(one), is_left_out), change))
        yield


def left_out(
    model: tf.keras.Model, variables: Sequence[tf.Variable]
) -> list[tf.keras.layers.Layer]:
    """Layers with buffers and trainable tensors of their own, none of them in `variables`.

    Layers that the user froze are not listed: Keras takes care of them. Normalisations without
    trainable tensors are, where the model takes stored statistics.
    """
    trained = {id(stack.raw(variable)) for variable in variables}
    stored = _on_stored_statistics(model)
    found = ((layer, *stack.own_variables(layer)) for layer in _not_frozen(model))
    return [
        layer
        for layer, own, buffers in found
        if buffers and (own or layer in stored) and trained.isdisjoint(map(id, own))
    ]


def as_compiled(model: tf.keras.Model) -> contextlib.AbstractContextManager[None]:
    """Run batch normalisations on the statistics that the model was compiled for.

    Scale and offset get their gradients on stored statistics too: a tape watches variables.
    """
    return frozen(_on_stored_statistics(model), is_left_out=False)


def _on_stored_statistics(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    state = getattr(model, "_elastic", None)  # of an elastic model
    if state is None or state.statistics == "batch":
        return []
    return [layer for layer in _not_frozen(model) if isinstance(layer, stack.NORMALISATIONS)]


def _not_frozen(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    """The layers that the user did not freeze."""
    return [
        one
        for one in model._flatten_layers()
        if one.trainable or any(is_held(("frozen", id(one), how)) for how in (True, False))
    ]


def _freeze(layer: tf.keras.layers.Layer, is_left_out: bool, changes: contextlib.ExitStack) -> None:
    # Not `layer.trainable`: its setter would freeze the layers inside as well.
    changes.enter_context(attributes(layer, _trainable=False))
    changes.enter_context(folded(layer))
    if not is_left_out:
        return
    starts = ("assign", "scatter_", "batch_scatter_")
    for variable in itertools.chain(*stack.own_variables(layer)):
        names = [name for name in dir(type(variable)) if name.startswith(starts)]
        changes.enter_context(attributes(variable, **dict.fromkeys(names, _skip(variable))))


def _skip(variable: tf.Variable) -> Any:
    """An assignment that leaves `variable` as it is."""
    return lambda *args, **kwargs: variable


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
        return normalised(layer, inputs, training=training, mask=mask)

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

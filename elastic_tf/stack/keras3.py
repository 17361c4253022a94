"""The seam to Keras 3 on TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import saving
from keras.src.losses.loss import unscale_loss_for_distribution
from keras.src.models.functional import Functional

from elastic_tf.stack.normalisation import normalised, normalises_last
from elastic_tf.stack.tensorflow import traced_once

__all__ = [
    "NORMALISATIONS",
    "PLAIN_NORMALISATIONS",
    "Functional",
    "called",
    "check_compiled",
    "compiled_loss",
    "computed_loss",
    "execution",
    "graph_ends",
    "in_one_op",
    "input_spec",
    "is_jit_compiled",
    "kernel",
    "layers_behind",
    "layers_of",
    "made_train_function",
    "normalises_last",
    "of_keras_alone",
    "on_stored_statistics",
    "output_shapes",
    "own_variables",
    "raw",
    "registered",
    "same_settings",
    "saving",
    "seeds_kept",
    "set_input_spec",
    "track_loss",
    "trainable",
    "uses_stored",
    "variables_of",
    "weights",
]


@saving.register_keras_serializable("elastic_tf")
class BatchNormalization(tf.keras.layers.BatchNormalization):
    """One that uses stored statistics in training; files of weights have the name of its class.

    Keras 3 overrides the `training=False` of a call in a graph: `fit` passes its own everywhere.
    """

    def __call__(self, inputs: Any, training: Any = None, **options: Any) -> Any:
        """Call it as in inference."""
        del training
        return super().__call__(inputs, training=False, **options)


#: Batch normalisations that compute as Keras does, by class.
PLAIN_NORMALISATIONS: tuple[type, ...] = (tf.keras.layers.BatchNormalization, BatchNormalization)
#: Batch normalisations, and what is derived from them.
NORMALISATIONS = PLAIN_NORMALISATIONS
_SPEC = "_elastic_input_spec"  # attribute of a model


# Variables


def raw(variable: Any) -> tf.Variable:
    """The `tf.Variable` of a variable of Keras.

    Not its `value`, which is a cast copy while a layer is called under mixed precision. Its name is
    Keras's path.
    """
    if not isinstance(variable, tf.keras.Variable):
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
    parts = layer._trainable_variables, layer._non_trainable_variables
    own, buffers = ([raw(variable) for variable in part] for part in parts)
    return own, buffers


# Layers


def uses_stored(layer: Any, training: Any) -> bool:
    """Whether a batch normalisation called so normalises by its stored statistics."""
    return not (training and layer.trainable)


def kernel(layer: Any) -> Any:
    """Keras's variable of the kernel of a Dense, Conv2D or DepthwiseConv2D.

    None where the layer multiplies by something else: with LoRA, or quantised.
    """
    is_other = getattr(layer, "lora_enabled", False) or layer.quantization_mode
    return None if is_other else layer.kernel


def in_one_op(layer: Any) -> dict[str, Any]:
    """Attributes by which a layer runs in one op, in the place of several or of one under XLA."""
    if type(layer) in PLAIN_NORMALISATIONS:
        return {"call": functools.partial(normalised, layer)}
    if type(layer) is tf.keras.layers.Conv2D and layer.groups > 1:
        return {"convolution_op": functools.partial(_convolved, layer)}
    return {}


def _convolved(layer: Any, inputs: tf.Tensor, kernel: Any) -> tf.Tensor:
    """The convolution of a Conv2D; Keras has XLA compile that of several groups."""
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
    return [node.operation for node in layer._outbound_nodes]


def output_shapes(layer: Any) -> list[Any]:
    """The shape of what a layer gives, at each of its places in graphs of layers."""
    return [node.outputs[0].shape for node in layer._inbound_nodes]


# Models


def layers_of(model: Any) -> list[Any]:
    """A model and all layers in it, each once, in the order in which they hold them.

    Keras 3's own list has the layers inside of another one backwards.
    """
    found: dict[int, Any] = {}

    def visit(layer: Any) -> None:
        if id(layer) not in found:
            found[id(layer)] = layer
            for inside in layer._layers:
                visit(inside)

    visit(model)
    return list(found.values())


def registered(kind: type) -> type:
    """Let Keras find a class of ours in its files; those of HDF5 name it without a package."""
    tf.keras.utils.get_custom_objects()[kind.__name__] = kind
    return saving.register_keras_serializable(package="elastic_tf")(kind)


def graph_ends(model: Any) -> tuple[Any, Any] | None:
    """Inputs and outputs of a model that is nothing but its graph of layers; None of others."""
    sequential = tf.keras.Sequential
    if isinstance(model, sequential) and type(model).call is sequential.call:
        model = model._functional
    if isinstance(model, Functional) and type(model).call is Functional.call:
        return model.input, model.output
    return None


def same_settings(made: Any, model: Any) -> None:
    """Give a model of another one's graph what is not in the graph."""
    made.dtype_policy = model.dtype_policy


def on_stored_statistics(model: Any) -> Any:
    """A copy of a graph of layers whose batch normalisations use stored statistics in training."""
    return _exchanged(model, *PLAIN_NORMALISATIONS)


def of_keras_alone(model: Any) -> Any:
    """A model that does the same in inference, or itself, without layers of ours."""
    has_own = any(type(layer) is BatchNormalization for layer in model.layers)
    return _exchanged(model, *PLAIN_NORMALISATIONS[::-1]) if has_own else model


def _exchanged(model: Any, old: type, new: type) -> Any:
    """A copy of a graph with layers of one kind for those of another."""

    def copied(layer: Any) -> Any:
        kind: Any = new if type(layer) is old else type(layer)
        return kind.from_config(layer.get_config())

    same = tf.keras.models.clone_model(model, clone_function=copied)
    same.set_weights(model.get_weights())
    return same


def input_spec(model: Any) -> Any:
    """Nested `tf.TensorSpec` of what a model is called with; None where it has never been."""
    if _SPEC in vars(model):
        return vars(model)[_SPEC]
    ends = graph_ends(model)
    if ends is not None:
        return tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), ends[0])
    if getattr(model, "inputs", None):
        return tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), model.input)
    shapes = [*(model._build_shapes_dict or {}).values()]
    if len(shapes) != 1 or not model.built:
        return None
    return tf.keras.tree.map_shape_structure(
        lambda shape: tf.TensorSpec((None, *shape[1:]), model.input_dtype), shapes[0]
    )


def set_input_spec(model: Any, spec: Any) -> None:
    """Say what a model is called with, before it has been."""
    vars(model)[_SPEC] = spec


def seeds_kept(model: Any) -> contextlib.AbstractContextManager[None]:
    """Put back the seeds that layers draw while they are traced: those of Keras 3 draw none."""
    del model
    return contextlib.nullcontext()


# The step


def check_compiled(model: Any) -> None:
    """Raise Keras's own error where a model was not compiled."""
    model._assert_compile_called("fit")


def compiled_loss(model: Any) -> Any:
    """What a model was compiled with: another one after each `compile`."""
    return model._compile_loss


def called(model: Any, x: Any, training: bool) -> Any:
    """The predictions of a model."""
    return model(x, training=training) if model._call_has_training_arg else model(x)


def computed_loss(model: Any, x: Any, y: Any, y_pred: Any, weight: Any, training: bool) -> Any:
    """The total loss that a model was compiled with, regularisers included."""
    with traced_once(), tf.init_scope():  # made in the graph, variables would have it traced twice
        for part in (model._compile_loss, model._compile_metrics):
            if part is not None and not part.built and y is not None:
                part.build(y, y_pred)
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight, training=training)


def track_loss(model: Any, data: Any, loss: Any) -> None:
    """Add a loss to the mean that the logs show, weighted by the length of the first of the data.

    Targets come first: the inputs may be cut off from a step.
    """
    if model._loss_tracker is not None:
        samples = next(part for part in tf.nest.flatten(data) if part is not None)
        model._loss_tracker.update_state(
            unscale_loss_for_distribution(loss), sample_weight=tf.shape(samples)[0]
        )


def is_jit_compiled(model: Any) -> bool:
    """Whether XLA compiles the steps of a model."""
    return bool(model.jit_compile)


def execution(model: Any) -> int:
    """Steps in one call of the train function."""
    return int(model.steps_per_execution)


def made_train_function(model: Any, make: Callable[..., Any], steps: int) -> tuple[Any, Any]:
    """Keras's train function of a model, and the `tf.function` in it, where there is one.

    Args:
        model: compiled.
        make: Keras's own `make_train_function` of it.
        steps: in one call, as compiled; Keras 3 keeps to them.
    """
    del steps
    make(force=True)
    inside = inspect.getclosurevars(model.train_function).nonlocals["multi_step_on_iterator"]
    if not hasattr(inside, "get_concrete_function"):
        return model.train_function, None
    inside._omit_frequent_tracing_warning = True  # a trace per plan is meant here
    return model.train_function, inside

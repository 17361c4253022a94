"""The seam to Keras 2: `keras` beside TensorFlow 2.15, `tf_keras` beside later ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import tensorflow as tf

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

_PACKAGE = tf.keras.Model.__module__.partition(".")[0]
Functional: Any = import_module(f"{_PACKAGE}.src.engine.functional").Functional
saving = tf.keras.saving
#: Batch normalisations that compute as Keras does, by class.
PLAIN_NORMALISATIONS: tuple[type, ...] = (tf.keras.layers.BatchNormalization,)
#: Batch normalisations, and what is derived from them. The second is no subclass of the first.
NORMALISATIONS = (
    tf.keras.layers.BatchNormalization,
    tf.keras.layers.experimental.SyncBatchNormalization,
)


# Variables


def raw(variable: Any) -> tf.Variable:
    """The `tf.Variable` of a variable of Keras."""
    return variable


def trainable(part: Any) -> list[tf.Variable]:
    """The trainable variables of a model or a layer, in Keras's order."""
    return list(part.trainable_variables)


def weights(part: Any) -> list[tf.Variable]:
    """The weights of a model or a layer, in Keras's order."""
    return list(part.weights)


def variables_of(part: Any) -> list[tf.Variable]:
    """All that a model, a layer or a metric holds, random generators and metrics too."""
    return list(part.variables)


def own_variables(layer: Any) -> tuple[list[tf.Variable], list[tf.Variable]]:
    """What a layer itself can train, frozen or not, and its buffers."""
    return list(layer._trainable_weights), list(layer._non_trainable_weights)


# Layers


def normalises_last(layer: Any) -> bool:
    """Whether a batch normalisation normalises the last of four axes, in the usual way."""
    return bool(layer.fused) and list(layer.axis) == [3]


def uses_stored(layer: Any, training: Any) -> bool:
    """Whether a batch normalisation called so normalises by its stored statistics."""
    return layer._get_training_value(training) in (False, 0)


def kernel(layer: Any) -> Any:
    """Keras's variable of the kernel of a Dense, Conv2D or DepthwiseConv2D."""
    is_depthwise = isinstance(layer, tf.keras.layers.DepthwiseConv2D)
    return layer.depthwise_kernel if is_depthwise else layer.kernel


def in_one_op(layer: Any) -> dict[str, Any]:
    """Attributes by which a layer runs in one op, in the place of several or of one under XLA."""
    if type(layer) is tf.keras.layers.Conv2D and layer.groups > 1:
        return {"_jit_compiled_convolution_op": layer.convolution_op}
    return {}


def layers_behind(layer: Any) -> list[Any]:
    """The layers that take what a layer gives, in graphs of layers."""
    return [node.outbound_layer for node in getattr(layer, "_outbound_nodes", ())]


def output_shapes(layer: Any) -> list[Any]:
    """The shape of what a layer gives, at each of its places in graphs of layers."""
    return [node.output_shapes for node in getattr(layer, "_inbound_nodes", ())]


# Models


def layers_of(model: Any) -> list[Any]:
    """A model and all layers in it, each once, in the order in which they hold them."""
    return list(model._flatten_layers())


def registered(kind: type) -> type:
    """Let Keras find a class of ours in its files; those of HDF5 name it without a package."""
    tf.keras.utils.get_custom_objects()[kind.__name__] = kind
    return saving.register_keras_serializable(package="elastic_tf")(kind)


def graph_ends(model: Any) -> tuple[Any, Any] | None:
    """Inputs and outputs of a model that is nothing but its graph of layers; None of others."""
    plain = (Functional.call, tf.keras.Sequential.call)
    if getattr(model, "_is_graph_network", False) and type(model).call in plain:
        return model.input, model.output
    return None


def same_settings(made: Any, model: Any) -> None:
    """Give a model of another one's graph what is not in the graph."""
    made._set_dtype_policy(model.dtype_policy)
    made.add_loss([*model._callable_losses])


def on_stored_statistics(model: Any) -> Any:
    """A copy of a graph of layers whose batch normalisations use stored statistics in training."""
    config = model.get_config()
    for layer in config["layers"]:
        if isinstance(model.get_layer(layer["name"]), NORMALISATIONS):
            for call in sum(layer["inbound_nodes"], []):
                call[3]["training"] = False
    same = tf.keras.Model.from_config(config)
    same.set_weights(model.get_weights())
    return same


def of_keras_alone(model: Any) -> Any:
    """A model that does the same in inference, without layers of ours: Keras 2 needs none."""
    return model


def input_spec(model: Any) -> Any:
    """Nested `tf.TensorSpec` of what a model is called with; None where it has never been."""
    if getattr(model, "inputs", None) and getattr(model, "_is_graph_network", False):
        return tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), model.input
        )
    saved = model.save_spec()
    return None if saved is None else saved[0][0]


def set_input_spec(model: Any, spec: Any) -> None:
    """Say what a model is called with, before it has been."""
    model._set_save_spec(spec)


@contextlib.contextmanager
def seeds_kept(model: Any) -> Iterator[None]:
    """Put back the seeds that layers draw while they are traced."""
    generators = [
        layer._random_generator
        for layer in model._flatten_layers()
        if hasattr(getattr(layer, "_random_generator", None), "_seed")
    ]
    seeds = [generator._seed for generator in generators]
    try:
        yield
    finally:
        for generator, seed in zip(generators, seeds):
            generator._seed = seed


# The step


def check_compiled(model: Any) -> None:
    """Raise Keras's own error where a model was not compiled."""
    model._assert_compile_was_called()


def compiled_loss(model: Any) -> Any:
    """What a model was compiled with: another one after each `compile`."""
    return model.compiled_loss


def called(model: Any, x: Any, training: bool) -> Any:
    """The predictions of a model."""
    return model(x, training=training)


def computed_loss(model: Any, x: Any, y: Any, y_pred: Any, weight: Any, training: bool) -> Any:
    """The total loss that a model was compiled with, regularisers included."""
    del training
    loss = model.compute_loss(x, y, y_pred, weight)
    model._validate_target_and_loss(y, loss)
    return loss


def track_loss(model: Any, data: Any, loss: Any) -> None:
    """Add a loss to the mean that the logs show; Keras 2 has done so."""
    del model, data, loss


def is_jit_compiled(model: Any) -> bool:
    """Whether XLA compiles the steps of a model."""
    return bool(model._jit_compile)


def execution(model: Any) -> int:
    """Steps in one call of the train function, now: Keras lowers it at the end of an epoch."""
    steps = model._steps_per_execution
    return 1 if steps is None else int(steps.numpy())


def made_train_function(model: Any, make: Callable[..., Any], steps: int) -> tuple[Any, Any]:
    """Keras's train function of a model, and the `tf.function` in it, where there is one.

    Args:
        model: compiled.
        make: Keras's own `make_train_function` of it.
        steps: in one call, as compiled: made for fewer, it would keep to them.
    """
    now = model._steps_per_execution.numpy()
    model._steps_per_execution.assign(steps)
    try:
        make(force=True)
    finally:
        model._steps_per_execution.assign(now)
    inside = model.train_tf_function
    if inside is not None:
        # A trace per plan is meant here; TensorFlow 2.15 would warn of retracing.
        inside._omit_frequent_tracing_warning = True
    return model.train_function, inside

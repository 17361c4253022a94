"""The head that a network gets, for outputs of each sample or of each position of its maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.train.head.targets import of_loss

L = tf.keras.layers
_ENDS = {tf.nn.softmax: "softmax", tf.nn.sigmoid: "sigmoid"}  # others have the name of Keras


def map_axes(model: tf.keras.Model, targets: tuple[int, ...]) -> int:
    """Axes along which each position has a target, of sequences or maps; 0 of one for a sample."""
    outputs = getattr(model, "output_shape", None)
    if not isinstance(outputs, tuple) or len(targets) < 3 or len(outputs) < 3:
        return 0
    axes = len(outputs) - 2
    if len(targets) - axes not in (1, 2):
        return 0
    if not tf.TensorShape(outputs[1:-1]).is_compatible_with(targets[1 : 1 + axes]):
        raise ValueError(
            f"Targets must be of the size of the maps that '{model.name}' gives, {outputs[1:-1]}. "
            f"Received: targets of shape {targets[1:]}. Resize them, or the network's outputs: "
            "tf.keras.layers.UpSampling2D."
        )
    return axes


def at_each(targets: np.ndarray, axes: int) -> np.ndarray:
    """(n,) or (n, outputs) targets, of all positions of maps."""
    flat = targets.reshape(-1, *targets.shape[1 + axes :])
    return flat[:, 0] if flat.shape[1:] == (1,) else flat


def classifier_of(model: tf.keras.Model, classes: int) -> tf.keras.Model:
    """A network with a new head of logits, in the place of its own; a ValueError if none can be."""
    return with_head(model, classes, "softmax", verbose=True, keeps=False)[0]


def with_head(
    model: tf.keras.Model,
    outputs: int,
    kind: str,
    *,
    verbose: bool,
    keeps: bool = True,
    axes: int = 0,
) -> tuple[tf.keras.Model, bool]:
    """The network with so many outputs, and whether these are logits; a head that fits may stay.

    Of maps it is a dense layer at each position, which can be solved.
    """
    stack.keras_model("model", model)
    ends = stack.graph_ends(model)
    if ends is None and not hasattr(model, "output_shape"):
        raise ValueError(
            "The network must be a functional or sequential model. Received: "
            f"'{model.name}' of type {type(model).__name__}. Make one of it: "
            "x = tf.keras.Input(...); network = tf.keras.Model(x, model(x))."
        )
    is_single = isinstance(model.output_shape, tuple)
    shape = tf.TensorShape(model.output_shape) if is_single else model.output_shape
    dense, end = end_of(model, (L.Dense, L.Conv1D, L.Conv2D) if axes else L.Dense)
    is_solved = isinstance(dense, L.Dense)
    units = dense.units if is_solved else getattr(dense, "filters", 0)
    if dense is not None and (not is_single or units != shape[-1] or shape.rank != 2 + axes):
        dense = None
    if keeps and dense is not None and is_solved and units == outputs and end in ("linear", kind):
        if ends is not None:  # to be compiled anew
            model = tf.keras.Model(*ends, name=model.name)
        return model, end == "linear"
    is_classifier = end in ("softmax", "sigmoid") or (
        dense is not None
        and (
            of_loss(getattr(model, "loss", None))
            or (not keeps and dense in model.layers)
            or (not is_solved and units == outputs)
        )
    )
    is_held = is_classifier and dense in model.layers
    if is_held and axes:  # what a convolution widens or shrinks has no such positions
        is_held = dense.input.shape[1:-1] == shape[1:-1]
    if ends is None or not is_single or (is_classifier and not is_held):
        raise ValueError(
            f"The network must end in a dense layer of {outputs} outputs, or in features. "
            f"Received: '{model.name}' with outputs of {shape}, a {end} end. Give it a new one: "
            f"tf.keras.layers.Dense({outputs})."
        )
    inputs, features = ends
    if is_classifier:
        features = dense.input
    elif dense is not None and end == "linear" and verbose:
        way = "give the network that was made before it"
        if dense in model.layers:
            way = f"give tf.keras.Model(network.input, network.get_layer({dense.name!r}).input)"
        print(
            f"The {units} outputs of '{dense.name}' are taken for features. To replace that "
            f"layer, {way}.",
            flush=True,
        )
    if not axes and len(features.shape) in (3, 4):
        pooling = L.GlobalAveragePooling1D if len(features.shape) == 3 else L.GlobalAveragePooling2D
        features = pooling()(features)
    head = L.Dense(outputs, name="new_head")(features)
    return tf.keras.Model(inputs, head, name=model.name), True


def end_of(model: tf.keras.Model, kinds: Any = L.Dense) -> tuple[Any, str]:
    """The layer of these kinds at the end, or None, and the last activation behind it."""
    end = "linear"
    for layer in reversed(stack.layers_of(model)):
        holds = len(stack.layers_of(layer)) > 1
        if not layer.built or holds or isinstance(layer, L.InputLayer):
            continue
        if not isinstance(layer, (L.Softmax, L.Activation)) and not isinstance(layer, kinds):
            break
        kind = getattr(layer, "activation", tf.nn.softmax)
        if end == "linear":
            end = str(_ENDS.get(kind) or getattr(kind, "__name__", "custom"))
        if isinstance(layer, kinds):
            return layer, end
    return None, end

"""What the outputs of a head stand for, how good they are, and the head that a network gets."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, stack
from elastic_tf.arguments import brief
from elastic_tf.lite import ridge

# Losses of independent yes and no, and of one class out of many.
_ONE_BY_ONE = ("binary_crossentropy", "binary_focal_crossentropy")
_ONE_OF_MANY = (
    *("categorical_crossentropy", "sparse_categorical_crossentropy"),
    "categorical_focal_crossentropy",
)
_OF_VALUES = (
    *("mean_squared_error", "mean_absolute_error", "mean_absolute_percentage_error"),
    *("mean_squared_logarithmic_error", "huber", "log_cosh", "cosine_similarity"),
)


def of_loss(loss: Any) -> str | None:
    """The outputs that a loss is the crossentropy of: "softmax", "sigmoid" or None."""
    if _is_one_of(loss, _ONE_BY_ONE):
        return "sigmoid"
    return "softmax" if _is_one_of(loss, _ONE_OF_MANY) else None


def of_values(loss: Any) -> bool:
    """Whether it is one of Keras's errors of values."""
    return _is_one_of(loss, _OF_VALUES)


def _is_one_of(loss: Any, names: Sequence[str]) -> bool:
    """Whether it is one of Keras's losses with these names, function or class."""
    losses = tf.keras.losses
    if not (isinstance(loss, (str, losses.Loss)) or callable(loss)):
        return False  # one for each of several outputs: what it says is not for one layer alone
    found = losses.get(loss)
    kinds = tuple(getattr(losses, name.title().replace("_", "")) for name in names)
    return isinstance(found, kinds) or any(found is losses.get(name) for name in names)


def _takes_logits(loss: Any) -> bool:
    config = getattr(tf.keras.losses.get(loss), "get_config", None)
    return bool(config and config().get("from_logits"))


def kind(model: tf.keras.Model, dense: tf.keras.layers.Dense, targets: np.ndarray) -> str:
    """What the layer's outputs stand for: "softmax", "sigmoid" or "linear"."""
    keras, compiled = tf.keras, getattr(model, "loss", None)
    loss = of_loss(compiled)
    is_last = dense is stack.layers_of(model)[-1] and dense.activation is keras.activations.linear
    if loss and is_last and not _takes_logits(compiled):
        warnings.warn(
            f"The loss must take logits, for the head, '{dense.name}', gives them. Received: "
            f"{brief(compiled)}, which takes probabilities. Compile with from_logits=True.",
            stacklevel=3,
        )
    if dense.activation is keras.activations.sigmoid or loss == "sigmoid":
        return "sigmoid"
    if dense.activation is keras.activations.softmax or loss == "softmax":
        return "softmax"
    if dense.activation is not keras.activations.linear:
        raise ValueError(
            "The head must be linear, softmax or sigmoid. Received: layer "
            f"'{dense.name}' with the activation {brief(dense.activation)}. Name another one as "
            "`layer`."
        )
    numbers = targets.ndim == 1 or targets.shape[1:] == (1,)
    whole = targets.dtype.kind in "iub" and numbers and dense.units > 1
    return "softmax" if whole else "linear"


def wanted(targets: np.ndarray, units: int, kind: str) -> np.ndarray:
    """(n, units) float64 what the ridge regression is to predict."""
    arguments.numbered(targets)
    flat = targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
    if kind == "softmax" and flat.ndim == 1:
        if not (np.equal(np.mod(flat, 1), 0).all() and 0 <= flat.min() and flat.max() < units):
            raise ValueError(
                f"`y` must be classes from 0 to {units - 1}, as many as the head has units. "
                f"Received: values from {flat.min()} to {flat.max()}."
            )
        return np.eye(units)[flat.astype(np.int64)]
    rows = (flat[:, None] if flat.ndim == 1 else flat).astype(np.float64)
    if rows.shape[1:] != (units,) or not np.isfinite(rows).all():
        raise ValueError(
            f"`y` must hold {units} finite values per sample, one for each unit of the head. "
            f"Received: {brief(targets)} of shape {targets.shape}."
        )
    return 2.0 * rows - 1.0 if kind == "sigmoid" else rows


def _yes_or_no(logits: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """(n,) mean crossentropy of independent outputs; `wanted` is 1 or -1."""
    return np.logaddexp(0.0, -wanted * logits).mean(axis=1)


#: (logits, wanted) -> (n,) loss of each sample, by the kind of outputs.
LOSSES = {"softmax": ridge.crossentropy, "sigmoid": _yes_or_no}


def accuracy(
    left_out: np.ndarray, wanted: np.ndarray, weight: np.ndarray, kind: str
) -> float | None:
    """Weighted share of samples of which what was left out says the right class."""
    if kind == "linear":
        return None
    if kind == "sigmoid":
        right = ((left_out > 0.0) == (wanted > 0.0)).mean(axis=1)
    else:
        right = left_out.argmax(axis=1) == wanted.argmax(axis=1)
    return float(np.average(right, weights=weight))


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

"""What the outputs of a head stand for, and how good they are."""

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

"""Methods that train the same tensors from the first step to the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.baselines.method import Method, Task
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.zoo import models


class TrainOnly(tf.keras.callbacks.Callback):
    """Trains the tensors where a mask is True, from the first step of a `fit` to the last."""

    def __init__(self, mask: np.ndarray) -> None:
        super().__init__()
        self._mask = mask

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.set_mask(self._mask)
        self.model.cache_prefix(self.params["epochs"])


def bn_bias_tensors(model: ElasticMixin) -> np.ndarray:
    """True for head, biases, gamma and beta of normalisation; bool, shape (N,), forward order."""
    return models.head_tensors(model) | bias_tensors(model) | scale_tensors(model)


def bias_tensors(model: ElasticMixin) -> np.ndarray:
    """True for biases and the beta of normalisation; bool, shape (N,), forward order.

    A tensor is a bias by what it is for the layer that owns it, whatever its own name: an attribute
    `bias` or one that ends in `_bias`.
    """

    def is_bias(layer: tf.keras.layers.Layer, name: str) -> bool:
        return name == "bias" or name.endswith("_bias") or (name == "beta" and _normalises(layer))

    return _held(model, is_bias)


def scale_tensors(model: ElasticMixin) -> np.ndarray:
    """True for the gamma of layers that normalise; bool, shape (N,), forward order."""
    return _held(model, lambda layer, name: name == "gamma" and _normalises(layer))


def _held(
    model: ElasticMixin, is_chosen: Callable[[tf.keras.layers.Layer, str], bool]
) -> np.ndarray:
    """True for the tensors that are chosen by their layer and the name of its attribute."""
    chosen = {
        id(value)
        for layer in model._flatten_layers()
        for name, value in vars(layer).items()
        if is_chosen(layer, name)
    }
    return np.array([id(tensor) in chosen for tensor in model.tensors])


def _normalises(layer: tf.keras.layers.Layer) -> bool:
    """Whether it scales and shifts; one of both may be switched off, and its attribute None."""
    return {"gamma", "beta"} <= vars(layer).keys()


def _method(name: str, summary: str, find: Callable[[Task], np.ndarray], **options: Any) -> Method:
    return Method(name, summary, lambda task: [TrainOnly(find(task))], **options)


METHODS = (
    Method("full", "all tensors", lambda task: []),
    _method("traditional_tl", "the head alone", lambda task: models.head_tensors(task.model)),
    _method(
        "bn_bias",
        "head, biases and normalisation parameters",
        lambda task: bn_bias_tensors(task.model),
    ),
)

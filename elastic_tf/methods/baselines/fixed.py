"""Methods that train the same tensors from the first step to the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.methods.baselines.method import Method
from elastic_tf.plan import Plan
from elastic_tf.stack import raw
from elastic_tf.train.engine import modes
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.head.features import head_tensors


class TrainOnly(tf.keras.callbacks.Callback):
    """Trains by one plan, or what is True in a mask, from the first step of a `fit` to the last."""

    def __init__(self, plan: Plan | np.ndarray) -> None:
        super().__init__()
        self._plan = plan

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_set = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self._is_set:
            self.model.set_plan(self._plan)
            self.model.cache_prefix(self.params["epochs"] - epoch)
            self._is_set = True


def bn_bias_tensors(model: ElasticMixin) -> np.ndarray:
    """True for head, biases, gamma and beta of normalisation; bool, shape (N,), forward order."""
    return head_tensors(model) | bias_tensors(model) | scale_tensors(model)


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


def filtered_plan(model: ElasticMixin) -> Plan:
    """Filtered gradients for the last four convolutions, exact ones behind and beside the kernels.

    Everything before is frozen; with fewer convolutions it trains from the first one on. One whose
    outputs have fewer than 2 pixels a side keeps exact gradients.

    Source: Yang, Li, Marculescu, Efficient On-device Training via Gradient Filtering, CVPR 2023,
    Sec. 4, which trains the last 2 to 10 by patches of 2 or 4 pixels a side.
    """
    held = _held(
        model, lambda layer, name: name.endswith("kernel") and "Conv2D" in type(layer).__name__
    )
    kernels = np.flatnonzero(held)
    fits = modes.kernels(model, "filtered:2")
    behind = np.arange(len(fits)) >= (kernels[-4:][0] if len(kernels) else 0)
    return Plan.from_mask(behind).filtered(2, fits & behind)


def _held(
    model: ElasticMixin, is_chosen: Callable[[tf.keras.layers.Layer, str], bool]
) -> np.ndarray:
    """True for the tensors that are chosen by their layer and the name of its attribute."""
    chosen = {
        id(raw(value))
        for layer in model._flatten_layers()
        for name, value in vars(layer).items()
        if is_chosen(layer, name)
    }
    return np.array([id(tensor) in chosen for tensor in model.tensors])


def _normalises(layer: tf.keras.layers.Layer) -> bool:
    """Whether it scales and shifts; one of both may be switched off, and its attribute None."""
    return {"gamma", "beta"} <= vars(layer).keys()


METHODS = (
    Method("full", "all tensors", lambda task: []),
    Method("traditional_tl", "the head alone", lambda task: [TrainOnly(head_tensors(task.model))]),
    Method(
        "bn_bias",
        "head, biases and normalisation parameters",
        lambda task: [TrainOnly(bn_bias_tensors(task.model))],
    ),
    Method(
        "gradient_filtering",
        "the last four convolutions by gradients of patches of 2 x 2 pixels (Yang et al., 2023)",
        lambda task: [TrainOnly(filtered_plan(task.model))],
    ),
)

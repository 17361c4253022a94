"""Methods that train the same tensors from the first step to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.baselines.method import Method, Task, profile_of
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.selection.selector import check_rho, smallest_feasible_rho
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.zoo import models


class FixedMask(tf.keras.callbacks.Callback):
    """Trains the tensors of one mask during `fit`; afterwards the model has its own mask again.

    Args:
        mask: bool, shape (N,), forward order; or a function of the model that gives one.
    """

    def __init__(self, mask: np.ndarray | Callable[[Any], np.ndarray]) -> None:
        super().__init__()
        self.mask = mask

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Set the mask."""
        if not isinstance(self.model, ElasticMixin):
            raise TypeError(
                f"FixedMask serves elastic models. Received: {type(self.model).__name__}. Make one "
                "with elastic_tf.ElasticModel.from_model(model) and compile it."
            )
        if self.model._elastic.callback is not None:
            raise ValueError(
                "One callback chooses what is trained. Received: a FixedMask beside "
                f"{type(self.model._elastic.callback).__name__} for '{self.model.name}'. Leave one "
                "out."
            )
        self.model.set_mask(self.mask(self.model) if callable(self.mask) else self.mask)
        self.model._elastic.callback = self


def bn_bias_tensors(model: ElasticMixin) -> np.ndarray:
    """True for the head, for biases, and for what normalisation scales and shifts by.

    Returns:
        bool, shape (N,), forward order.
    """
    return models.head_tensors(model) | bias_tensors(model) | scale_tensors(model)


def bias_tensors(model: ElasticMixin) -> np.ndarray:
    """True for tensors that are added: biases, and the beta of normalisation.

    A tensor is a bias by what it is for the layer that owns it, whatever its own name: the layer's
    attribute `bias` (so in Keras: of dense, convolutional and attention layers, of the cells of
    recurrent ones) or one that ends in `_bias`, or the `beta` of a layer that normalises.

    Returns:
        bool, shape (N,), forward order.
    """
    arguments.elastic(model)
    return is_among(
        model,
        (
            value
            for layer in model._flatten_layers()
            for name, value in vars(layer).items()
            if name == "bias" or name.endswith("_bias") or (name == "beta" and _normalises(layer))
        ),
    )


def scale_tensors(model: ElasticMixin) -> np.ndarray:
    """True for the gamma of layers that normalise.

    Returns:
        bool, shape (N,), forward order.
    """
    arguments.elastic(model)
    layers = filter(_normalises, model._flatten_layers())
    return is_among(model, (vars(layer)["gamma"] for layer in layers))


def last_tensors(model: ElasticMixin, profile: TimingProfile, rho: float) -> np.ndarray:
    """True for as many of the last tensors as can be trained within `rho` of the full step time.

    Args:
        model: an elastic model.
        profile: times measured on the target device.
        rho: allowed step time / full step time, in (0, 1].

    Returns:
        bool, shape (N,), forward order: the head, and tensors before it without a gap.

    Raises:
        ValueError: the budget does not admit the head; the message names the smallest `rho`.
    """
    check_rho(rho)
    arguments.instance("profile", profile, TimingProfile, "a TimingProfile")
    profile.check(model)
    head = models.head_tensors(model)
    order = np.arange(len(head))
    for first in range(int(head.argmax()) + 1):
        mask = order >= first
        if profile.step_time(mask) <= rho * profile.t_full:
            return mask
    smallest = smallest_feasible_rho(profile, required=order >= head.argmax())
    # rounded up: what the message names must be feasible
    raise ValueError(
        f"The budget is too small to train the head. Received: rho={rho}. The smallest feasible "
        f"rho is {np.ceil(1e4 * smallest) / 1e4:.4f}."
    )


def _normalises(layer: tf.keras.layers.Layer) -> bool:
    """Whether it scales and shifts; one of both may be switched off, and its attribute None."""
    return {"gamma", "beta"} <= vars(layer).keys()


def is_among(model: ElasticMixin, variables: Iterable[Any]) -> np.ndarray:
    """True for the tensors of the model that are among `variables`; bool, shape (N,)."""
    arguments.elastic(model)
    if isinstance(variables, (str, bytes, np.ndarray)) or not isinstance(variables, Iterable):
        raise TypeError(f"`variables` must be variables. Received: {brief(variables)}.")
    chosen = {id(variable) for variable in variables if variable is not None}
    return np.array([id(tensor) in chosen for tensor in model.tensors])


def _last_k(task: Task) -> list[tf.keras.callbacks.Callback]:
    return [FixedMask(last_tensors(task.model, profile_of(task), task.rho))]


METHODS = (
    Method("full", "all tensors", lambda task: []),
    Method("traditional_tl", "the head alone", lambda task: [FixedMask(models.head_tensors)]),
    Method(
        "bn_bias",
        "head, biases and normalisation parameters",
        lambda task: [FixedMask(bn_bias_tensors)],
    ),
    Method("last_k", "as many of the last tensors as fit rho", _last_k, needs_profile=True),
)

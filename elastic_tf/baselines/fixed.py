"""Methods that train the same tensors from the first step to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.baselines.method import Method, Task, profile_of
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.plan import Plan
from elastic_tf.selection.selector import check_rho, smallest_feasible_rho
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.zoo import models


class FixedPlan(tf.keras.callbacks.Callback):
    """Trains by one plan during `fit`; afterwards the model has its own plan again.

    Args:
        plan: a plan or a bool mask, or a function of the model that gives one.
    """

    def __init__(
        self, plan: Plan | np.ndarray | Callable[[ElasticMixin], Plan | np.ndarray]
    ) -> None:
        super().__init__()
        self.plan = plan

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Set the plan."""
        model = arguments.elastic(self.model)
        if model._elastic.callback is not None:
            raise ValueError(
                "One callback chooses what is trained. Received: a FixedPlan beside "
                f"{type(model._elastic.callback).__name__} for '{model.name}'. Leave one out."
            )
        model.set_plan(self.plan(model) if callable(self.plan) else self.plan)
        model._elastic.callback = self


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
    layers = filter(_normalises, model._flatten_layers())
    return is_among(model, (vars(layer)["gamma"] for layer in layers))


def is_among(model: ElasticMixin, variables: Iterable[Any]) -> np.ndarray:
    """True for the tensors of the model that are among `variables`; bool, shape (N,)."""
    chosen = {id(variable) for variable in variables if variable is not None}
    return np.array([id(tensor) in chosen for tensor in model.tensors])


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
    profile.check(model)
    head = models.head_tensors(model)
    order = np.arange(len(head))
    for first in range(int(head.argmax()) + 1):
        if profile.step_time(order >= first) <= rho * profile.t_full:
            return order >= first
    smallest = smallest_feasible_rho(profile, required=order >= head.argmax())
    # rounded up: what the message names must be feasible
    raise ValueError(
        f"The budget is too small to train the head. Received: rho={rho}. The smallest feasible "
        f"rho is {np.ceil(1e4 * smallest) / 1e4:.4f}."
    )


def _normalises(layer: tf.keras.layers.Layer) -> bool:
    """Whether it scales and shifts; one of both may be switched off, and its attribute None."""
    return {"gamma", "beta"} <= vars(layer).keys()


def _last_k(task: Task) -> list[tf.keras.callbacks.Callback]:
    return [FixedPlan(last_tensors(task.model, profile_of(task), task.rho))]


METHODS = (
    Method("full", "all tensors", lambda task: []),
    Method("traditional_tl", "the head alone", lambda task: [FixedPlan(models.head_tensors)]),
    Method(
        "bn_bias",
        "head, biases and normalisation parameters",
        lambda task: [FixedPlan(bn_bias_tensors)],
    ),
    Method("last_k", "as many of the last tensors as fit rho", _last_k, needs_profile=True),
)

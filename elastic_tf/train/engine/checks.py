"""What an elastic model cannot do, refused as early as it shows, with the reason."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.plan import Plan

_BOLD = re.compile(r"\x1b\[\d+m")  # of a terminal
_MOST_OF_REASON = 300  # characters: TensorFlow's may hold all labels of a batch
# Standard deviations from the stored mean, at the first batch normalisation: 0.3 to 1.1 of birds,
# signs, flowers and CIFAR-10 in MobileNet and MobileNetV2, scaled rightly; 63 to 168 unscaled.
_UNLIKE = 8.0


def check_bases(cls: type, mixin: type) -> None:
    """Refuse a class in which `mixin` comes after Keras's model, or hides another train step."""
    order = cls.__mro__
    if tf.keras.Model in order and order.index(tf.keras.Model) < order.index(mixin):
        names = ", ".join(base.__name__ for base in cls.__bases__)
        raise TypeError(
            f"{mixin.__name__} must stand before the model among the base classes, or Keras's "
            f"train step hides the elastic one. Received: class {cls.__name__}({names}). Write "
            f"elastic_tf.{mixin.__name__} first."
        )
    hidden = [
        base
        for base in order[order.index(mixin) + 1 :]
        if "train_step" in vars(base) and base not in tf.keras.Model.__mro__
    ]
    if hidden and getattr(cls, "train_step", None) is vars(mixin)["train_step"]:
        raise TypeError(
            f"The train step of an elastic model must be {mixin.__name__}'s or its own. Received: "
            f"{cls.__name__}, which inherits another one from {hidden[0].__name__}. Define "
            f"{cls.__name__}.train_step with self.gradients(data, variables), "
            "elastic_tf.train.optimizers.apply_selected and self.finish(step)."
        )


def check_strategy(model: tf.keras.Model) -> None:
    """Refuse a model that was made in the scope of a strategy."""
    if stack.has_strategy(model):
        raise TypeError(
            "An elastic model trains on one device, without a strategy. Received: a model made in "
            f"the scope of a {type(model.distribute_strategy).__name__}. Leave the scope out; many "
            "devices train together by elastic_tf.federated."
        )


def warn_if_untrained(model: tf.keras.Model) -> None:
    """Say so where no bias, offset or moving mean was ever moved, but the last: of a solved head.

    A network that has none but one, of which nothing is known, is taken for trained.
    """
    names = "bias", "beta", "moving_mean"
    found = [one for one in model.weights if any(name in one.name for name in names)][:-1]
    if found and not any(np.any(one) for one in found):
        warnings.warn(
            f"Nothing of '{model.name}' is trained yet, and what is left out stays random. Load "
            "pre-trained weights, or train everything.",
            stacklevel=3,
        )


def warn_if_unlike(model: tf.keras.Model, x: Any) -> None:
    """Say so where inputs, of a batch, are scaled otherwise than those of the pre-training."""
    layers: list[Any] = [] if stack.graph_ends(model) is None else model.layers
    first: Any = next((one for one in layers if isinstance(one, stack.NORMALISATIONS)), None)
    if first is None or len(first._inbound_nodes) != 1:  # used more than once: it is no first one
        return
    x = tf.nest.map_structure(lambda part: tf.cast(part, tf.float32), x)
    seen = np.moveaxis(tf.keras.Model(model.inputs, first.input)(x), first.axis, -1)
    mean, variance = (np.asarray(part) for part in (first.moving_mean, first.moving_variance))
    off = np.sqrt(np.mean((seen - mean) ** 2 / (variance + first.epsilon)))
    if off > _UNLIKE:
        values = tf.nest.flatten(x)[0]
        warnings.warn(
            f"The inputs are unlike those that '{model.name}' was trained on: at its first batch "
            f"normalisation they are {off:.0f} standard deviations from the mean, where 1 is "
            f"usual. Received: values from {np.min(values):g} to {np.max(values):g}. Scale them as "
            "for the pre-training: many networks take -1 to 1.",
            stacklevel=3,
        )


def check_plan(plan: Plan) -> None:
    """Refuse a plan that trains nothing."""
    if not plan.mask.any():
        raise ValueError(
            f"A tensor must be trained. Received: {len(plan)} frozen ones. Keep at least the head "
            "trained."
        )


@contextlib.contextmanager
def frozen_explained(model: tf.keras.Model) -> Iterator[None]:
    """Say in a ValueError, of a choice that is not possible, that layers are frozen."""
    try:
        yield
    except ValueError as error:
        frozen = [one for one in stack.layers_of(model) if one.weights and not one.trainable]
        if not frozen:
            raise
        raise ValueError(
            f"{error} {len(frozen)} layers of '{model.name}' are frozen, and no part of the "
            f"choice: set `trainable = True`, of '{frozen[0].name}' first, and compile again."
        ) from error


@contextlib.contextmanager
def batch_explained(data: Sequence[Any]) -> Iterator[None]:
    """Say by a ValueError which batch, (x, y) or (x, y, weight), a model refused, and why."""
    try:
        yield
    except (
        ValueError,
        TypeError,
        # labels that are none; texts instead of numbers
        tf.errors.InvalidArgumentError,
        tf.errors.UnimplementedError,
    ) as error:
        said = ", ".join(
            f"{name} of shape {tf.nest.map_structure(lambda a: tuple(a.shape), part)}"
            for name, part in zip(("x", "y", "sample_weight"), data)
            if part is not None
        )
        # before it TensorFlow tells the calls, after it the node; Keras a layer's arguments
        told = re.split(r"(?:Call a|A)rguments received by", _BOLD.sub("", str(error)))[0]
        lines = [line for line in told.splitlines() if line.strip() and "[[" not in line]
        reason = lines[-1].strip()[:_MOST_OF_REASON] if lines else type(error).__name__
        raise ValueError(
            f"The model cannot be trained on the batch. Received: {said}. Compare the batch with "
            "the model's input and its loss: class numbers need a sparse loss, one-hot labels a "
            f"categorical one. The reason: {reason}"
        ) from error

"""What an elastic model cannot do, refused as early as it shows, with the reason."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.arguments import brief

# What TensorFlow raises for labels that are none, and for texts instead of numbers.
_OF_THE_BATCH = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
# What TensorFlow writes around a reason: nodes and ops; the kind of the error; how many there were.
_DECORATION = r"\[\[.*|\{\{.*?\}\}|\[Op:.*"
_KIND_OF_ERROR = r"^(\(\d+\) )?(\w*(Error|Exception)|[A-Z_]{3,}): +"
_COUNT_OF_ERRORS = r"\d+ (successful operations|derived errors ignored|root error\(s\) found)\."
_LONGEST_REASON = 300  # characters: some list every label of the batch
_REFUSED_STRATEGIES = (
    tf.distribute.experimental.CentralStorageStrategy,
    tf.distribute.experimental.ParameterServerStrategy,
    tf.distribute.ParameterServerStrategy,
    tf.distribute.TPUStrategy,
)


def checked_mask(mask: Any, count: int) -> np.ndarray:
    """A copy of `mask`, if it is one for `count` tensors.

    Raises:
        ValueError: wrong dtype or shape, or nothing is True.
    """
    given = mask
    mask = arguments.array("mask", mask).copy()
    if mask.dtype != bool:
        raise ValueError(
            f"`mask` must be of dtype bool. Received: dtype {mask.dtype}: {brief(given)}. Convert "
            "indices with np.isin(np.arange(N), indices)."
        )
    if mask.shape != (count,):
        raise ValueError(
            f"`mask` must have one entry per trainable tensor, shape ({count},). Received: shape "
            f"{mask.shape}: {brief(given)}. See model.tensors for the order."
        )
    if not mask.any():
        raise ValueError(
            f"`mask` must be True somewhere. Received: {count} times False. Keep at least the head "
            "trained."
        )
    return mask


def check_bases(cls: type, mixin: type) -> None:
    """Refuse a class in which `mixin` does not stand before Keras's model.

    Raises:
        TypeError: the mixin comes after the model, or hides a train step of another base.
    """
    order = cls.__mro__
    if tf.keras.Model in order and order.index(tf.keras.Model) < order.index(mixin):
        names = ", ".join(base.__name__ for base in cls.__bases__)
        raise TypeError(
            f"{mixin.__name__} must stand before the model among the base classes: behind it, "
            f"Keras's train step would hide the elastic one. Received: class "
            f"{cls.__name__}({names}). Write class {cls.__name__}(elastic_tf.{mixin.__name__}, "
            f"{', '.join(n for n in names.split(', ') if n != mixin.__name__)})."
        )
    hidden = [
        base
        for base in order[order.index(mixin) + 1 :]
        if "train_step" in vars(base) and base is not tf.keras.Model
    ]
    if hidden and getattr(cls, "train_step", None) is vars(mixin)["train_step"]:
        raise TypeError(
            f"The train step of an elastic model must be {mixin.__name__}'s or its own. Received: "
            f"{cls.__name__}, which inherits another one from {hidden[0].__name__}. Define "
            f"train_step in {cls.__name__} with self.gradients(data, variables), "
            "elastic_tf.optimizers.apply_selected and self.finish(step)."
        )


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Refuse a strategy that splits the tensors or runs steps elsewhere.

    Raises:
        TypeError: the strategy is not served.
    """
    if isinstance(strategy, _REFUSED_STRATEGIES):
        raise TypeError(
            "The strategy must keep all tensors on every replica: MirroredStrategy, "
            "MultiWorkerMirroredStrategy or OneDeviceStrategy. Received: "
            f"{type(strategy).__name__}."
        )


def check_accumulation(steps: Any, own_train_step: bool, model: tf.keras.Model) -> None:
    """Refuse what gradients cannot be accumulated with.

    Raises:
        ValueError: `steps` is no count, or another option stands against it.
    """
    arguments.count("accumulate", steps)
    if steps == 1:
        return
    if own_train_step:
        raise ValueError(
            f"`accumulate` must be 1 where the class has a train_step of its own, which updates at "
            f"every step. Received: accumulate={steps} for {type(model).__name__}. Accumulate in "
            "that train_step, or leave it to ElasticMixin."
        )
    if not (model.built and model.trainable_variables):
        raise ValueError(
            "`accumulate` needs a model that is built: the sums of its gradients are made before "
            f"the first step. Received: accumulate={steps} for '{model.name}', which is not. Call "
            "it on a batch first."
        )
    execution = int(model._steps_per_execution.numpy())
    if model.autotune_steps_per_execution or execution != 1:
        raise ValueError(
            "`accumulate` and `steps_per_execution` exclude each other: the update follows the "
            "last micro-step, outside the loop that is executed at once. Received: "
            f"accumulate={steps} and steps_per_execution={execution}."
        )


@contextlib.contextmanager
def batch_explained(data: Sequence[Any]) -> Iterator[None]:
    """Say in one line which batch a model could not be trained on, and why.

    Args:
        data: (x, y) or (x, y, sample_weight).

    Raises:
        ValueError: the model refused it.
    """
    try:
        yield
    except (ValueError, TypeError, *_OF_THE_BATCH) as error:
        parts = zip(("x", "y", "sample_weight"), data)
        said = ", ".join(
            f"{name} {_form(part)}"
            for name, part in parts
            if part is not None or name != "sample_weight"
        )
        raise ValueError(
            f"The model cannot be trained on the batch. Received: {said}. The reason: "
            f"{_reason(error)} Compare the batch with the model's input and its loss: class "
            "numbers need a sparse loss, one-hot labels a categorical one."
        ) from error


def _reason(error: Exception) -> str:
    """What an error says in the end, without the places in the code that lead there."""
    said = str(getattr(error, "message", error)).partition("Call arguments received by")[0]
    lines = [re.sub(_DECORATION, "", line).strip() for line in said.splitlines()]
    told = [line for line in lines if line and not re.fullmatch(_COUNT_OF_ERRORS, line)]
    reason = re.sub(_KIND_OF_ERROR, "", told[-1]) if told else type(error).__name__
    if len(reason) > _LONGEST_REASON:
        return f"{reason[:_LONGEST_REASON]}..."
    return reason if reason.endswith((".", "!", "?")) else f"{reason}."


def _form(part: Any) -> str:
    """The shapes of the arrays of a part of a batch, or what it is without any."""
    shapes = [str(tuple(array.shape)) for array in tf.nest.flatten(part) if array is not None]
    return f"of shape {', '.join(shapes)}" if shapes else f"= {part!r}"


@contextlib.contextmanager
def xla_explained(jit_compile: bool) -> Iterator[None]:
    """Say in one line what XLA refuses.

    Raises:
        ValueError: the step holds an op that XLA has no code for.
    """
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        refused = re.search(r"unsupported operations.*?: (\w+) \(", str(error), re.DOTALL)
        if not jit_compile or "XLA" not in str(error):
            raise
        what = f"the op {refused[1]}" if refused else str(error).splitlines()[0]
        raise ValueError(
            "With jit_compile=True every op of the step must be one that XLA can compile. "
            f"Received: a step with {what}. Compile the model with jit_compile=False."
        ) from error

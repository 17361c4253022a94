"""Which Keras `tf.keras` is, what is said where it is the wrong one, and its variables."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import tensorflow as tf

_OLDEST = (3, 15)

try:
    #: The package that `tf.keras` is: "keras", or "tf_keras" where TF_USE_LEGACY_KERAS=1 says so.
    KERAS: str = tf.keras.Model.__module__.partition(".")[0]
except ImportError as error:
    switches = {key: os.environ.get(key) for key in ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND")}
    raise ImportError(
        f"TensorFlow {tf.__version__} cannot load Keras. Received: {switches}. Where "
        "TF_USE_LEGACY_KERAS is 1, install tf_keras or unset it; KERAS_BACKEND must be "
        "tensorflow or unset."
    ) from error
#: Its version, for messages.
KERAS_VERSION: str = import_module(KERAS).__version__


def _is_keras2() -> bool:
    """Whether it is Keras 2; an ImportError if it is too old, or does not run on TensorFlow."""
    major, minor = (int(part) for part in KERAS_VERSION.split(".")[:2])
    if (major, minor) == (2, 15) or major == 2 and KERAS == "tf_keras":
        return True
    if (major, minor) < _OLDEST:
        raise ImportError(
            f"elastic_tf needs Keras {_OLDEST[0]}.{_OLDEST[1]} or later, or Keras 2.15 beside "
            f"TensorFlow 2.15. Received: Keras {KERAS_VERSION} beside TensorFlow {tf.__version__}. "
            "Install the newest: pip install -U tensorflow keras."
        )
    backend = tf.keras.backend.backend()
    if backend != "tensorflow":
        raise ImportError(
            "elastic_tf trains Keras models on TensorFlow. Received: Keras "
            f"{KERAS_VERSION} with the backend {backend!r}. Set KERAS_BACKEND=tensorflow in the "
            "environment, or in ~/.keras/keras.json, before Keras is imported."
        )
    return False


IS_KERAS2 = _is_keras2()


def raw(variable: Any) -> tf.Variable:
    """The `tf.Variable` of a variable of Keras.

    Not its `value`, which is a cast copy while a layer is called under mixed precision. Its name is
    Keras's path.
    """
    if IS_KERAS2 or not isinstance(variable, tf.keras.Variable):
        return variable
    found = variable._value
    if hasattr(found, "_handle_name"):  # which lacks the layer, in a model with a `call` of its own
        found._handle_name = f"{variable.path}:0"
    return found


def trainable(part: Any) -> list[tf.Variable]:
    """The trainable variables of a model or a layer, in Keras's order."""
    return [raw(variable) for variable in part.trainable_variables]


def weights(part: Any) -> list[tf.Variable]:
    """The weights of a model or a layer, in Keras's order."""
    return [raw(variable) for variable in part.weights]


def variables_of(part: Any) -> list[tf.Variable]:
    """All that a model, a layer or a metric holds, random generators and metrics too."""
    return [raw(variable) for variable in part.variables]


def own_variables(layer: Any) -> tuple[list[tf.Variable], list[tf.Variable]]:
    """What a layer itself can train, frozen or not, and its buffers."""
    kind = "weights" if IS_KERAS2 else "variables"
    parts = getattr(layer, f"_trainable_{kind}"), getattr(layer, f"_non_trainable_{kind}")
    own, buffers = ([raw(variable) for variable in part] for part in parts)
    return own, buffers


@contextlib.contextmanager
def attributes(owner: object, **others: object) -> Iterator[None]:
    """Other attributes of an object, past `setattr`, by which Keras tracks what is put there."""
    own = vars(owner)
    before = {name: own[name] for name in others if name in own}
    own.update(others)
    try:
        yield
    finally:
        own.update(before)
        for name in others.keys() - before.keys():
            del own[name]

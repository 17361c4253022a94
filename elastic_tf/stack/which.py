"""Which Keras `tf.keras` is, and what is said where it is the wrong one."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import tensorflow as tf

from elastic_tf import arguments

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


def keras_model(name: str, value: Any) -> Any:
    """A model of the Keras that `tf.keras` is; else a TypeError, also of a model of another one."""
    homes, hint = (".src.engine.training", ".src.models.model"), ""
    kinds = [kind.__module__ for kind in type(value).__mro__ if kind.__name__ == "Model"]
    package = next((one.partition(".")[0] for one in kinds if one.endswith(homes)), KERAS)
    if package != KERAS:
        switch = "unset TF_USE_LEGACY_KERAS" if KERAS == "tf_keras" else "set TF_USE_LEGACY_KERAS=1"
        hint = (
            f"It is a model of the package {package}; `tf.keras` is {KERAS} {KERAS_VERSION}. Build "
            f"it with `tf.keras`, or {switch} before TensorFlow is imported."
        )
    return arguments.instance(name, value, tf.keras.Model, "a Keras model", hint)

"""The seam to TensorFlow and Keras: nothing above asks which Keras it is.

`keras3` and `keras2` have the same names; the one that `tf.keras` is serves. `tensorflow` has what
is taken from inside TensorFlow. A *variable* is a `tf.Variable` everywhere above: with Keras 3 the
one inside Keras's own, which `raw` takes out.
"""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.stack.tensorflow import *  # noqa: F403


def _package() -> str:
    """The package that `tf.keras` is.

    Raises:
        ImportError: TensorFlow cannot load it.
    """
    try:
        found: str = tf.keras.Model.__module__
    except ImportError as error:
        switches = {key: os.environ.get(key) for key in ("TF_USE_LEGACY_KERAS", "KERAS_BACKEND")}
        raise ImportError(
            f"TensorFlow {tf.__version__} cannot load Keras. Received: {switches}. Where "
            "TF_USE_LEGACY_KERAS is 1, install tf_keras or unset it; KERAS_BACKEND must be "
            "tensorflow or unset."
        ) from error
    return found.partition(".")[0]


#: The package that `tf.keras` is: "keras", or "tf_keras" where TF_USE_LEGACY_KERAS=1 says so.
KERAS: str = _package()
#: Its version, for messages.
KERAS_VERSION: str = import_module(KERAS).__version__
_OLDEST = (3, 15)


def _major() -> int:
    """The first number of the version of Keras.

    Raises:
        ImportError: it is too old, or does not run on TensorFlow.
    """
    major, minor = (int(part) for part in KERAS_VERSION.split(".")[:2])
    if (major, minor) == (2, 15) or major == 2 and KERAS == "tf_keras":
        return 2
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
    return 3


if TYPE_CHECKING or _major() == 3:
    from elastic_tf.stack.fit_keras3 import *  # noqa: F403
    from elastic_tf.stack.keras3 import *  # noqa: F403
    from elastic_tf.stack.updates_keras3 import *  # noqa: F403
else:
    from elastic_tf.stack.fit_keras2 import *  # noqa: F403
    from elastic_tf.stack.keras2 import *  # noqa: F403
    from elastic_tf.stack.updates_keras2 import *  # noqa: F403


_FIT = inspect.unwrap(tf.keras.Model.fit).__code__


def running_fit(model: tf.keras.Model) -> RunningFit | None:  # noqa: F405
    """The `fit` of a model that this is called in; None outside of one.

    Keras keeps what it knows of the data in a local variable.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is _FIT and frame.f_locals["self"] is model:
            return RunningFit(frame.f_locals)  # noqa: F405
        frame = frame.f_back
    return None


def keras_model(name: str, value: Any) -> Any:
    """A model of the Keras that `tf.keras` is.

    Raises:
        TypeError: it is none; the message says what to do about one of another Keras.
    """
    return arguments.instance(name, value, tf.keras.Model, "a Keras model", other_keras(value))


def other_keras(value: object) -> str:
    """What to do about a model of another Keras than `tf.keras` is; "" where it is none."""
    homes = ".src.engine.training", ".src.models.model"
    found = [kind.__module__ for kind in type(value).__mro__ if kind.__name__ == "Model"]
    package = next((one.partition(".")[0] for one in found if one.endswith(homes)), KERAS)
    if package == KERAS:
        return ""
    switch = "unset TF_USE_LEGACY_KERAS" if KERAS == "tf_keras" else "set TF_USE_LEGACY_KERAS=1"
    return (
        f"It is a model of the package {package}; `tf.keras` is {KERAS} {KERAS_VERSION}. Build it "
        f"with `tf.keras`, or {switch} before TensorFlow is imported."
    )

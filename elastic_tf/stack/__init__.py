"""The seam to TensorFlow and Keras: nothing above asks which Keras it is.

`keras3` and `keras2` have the same names; the one that `tf.keras` is serves. `tensorflow` has what
is taken from inside TensorFlow. A *variable* is a `tf.Variable` everywhere above: with Keras 3 the
one inside Keras's own, which `raw` takes out.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING

import tensorflow as tf

from elastic_tf.stack.tensorflow import *  # noqa: F403

#: The package that `tf.keras` is: "keras", or "tf_keras" where TF_USE_LEGACY_KERAS=1 says so.
KERAS: str = tf.keras.Model.__module__.partition(".")[0]
#: Its version, for messages.
KERAS_VERSION: str = import_module(KERAS).__version__


def _major() -> int:
    """The first number of the version of Keras.

    Raises:
        ImportError: it does not run on TensorFlow.
    """
    if KERAS_VERSION.startswith("2."):
        return 2
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
else:
    from elastic_tf.stack.fit_keras2 import *  # noqa: F403
    from elastic_tf.stack.keras2 import *  # noqa: F403


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


def other_keras(value: object) -> str:
    """What to do about a model of another Keras than `tf.keras` is; "" where it is none."""
    package = next(
        (
            kind.__module__.partition(".")[0]
            for kind in type(value).__mro__
            if kind.__name__ == "Model"
            and ".engine.training" in f".{kind.__module__}"
            or kind.__name__ == "Model"
            and ".models.model" in f".{kind.__module__}"
        ),
        "",
    )
    if package in ("", KERAS):
        return ""
    switch = "unset TF_USE_LEGACY_KERAS" if KERAS == "tf_keras" else "set TF_USE_LEGACY_KERAS=1"
    return (
        f" It is a model of the package {package}; `tf.keras` is {KERAS} {KERAS_VERSION}. Build it "
        f"with `tf.keras`, or {switch} before TensorFlow is imported."
    )

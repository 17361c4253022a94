"""Keras 2 for TensorFlow, chosen before TensorFlow is loaded.

TensorFlow 2.15 comes with Keras 2. From 2.16 on `tf.keras` is Keras 3, whose models are trained in
another way; the package tf_keras goes on with Keras 2. TensorFlow takes it where the environment
says TF_USE_LEGACY_KERAS=1 at the first use of `tf.keras`.
"""

from __future__ import annotations

import os
from importlib import import_module, metadata
from typing import Any

_SWITCH = "TF_USE_LEGACY_KERAS"


def choose() -> None:
    """Ask for Keras 2 in the environment, for child processes too, where Keras 3 is installed."""
    if _major("keras") >= 3:
        os.environ.setdefault(_SWITCH, "1")


def package(tensorflow: Any) -> str:
    """The package that `tf.keras` is: "keras" or "tf_keras", of version 2.

    Args:
        tensorflow: the module.

    Raises:
        ImportError: `tf.keras` is Keras 3, or missing; what to do is named.
    """
    version = tensorflow.__version__
    if _major("keras") >= 3 and not _major("tf_keras"):
        command = f'pip install "tf_keras=={".".join(version.split(".")[:2])}.*"'
        raise ImportError(
            f"elastic_tf trains models of Keras 2. Received: TensorFlow {version} without the "
            f"package tf_keras, which has it. {command}"
        )
    name: str = tensorflow.keras.Model.__module__.partition(".")[0]
    keras = import_module(name).__version__
    # tf_keras has TensorFlow's version
    if int(keras.partition(".")[0]) < 3:
        return name
    raise ImportError(
        f"elastic_tf trains models of Keras 2. Received: TensorFlow {version} with Keras {keras}. "
        f"Import elastic_tf before `tf.keras` is used, or start Python with {_SWITCH}=1 in its "
        "environment."
    )


def _major(name: str) -> int:
    """The first number of a package's version; 0 where it is not installed."""
    try:
        return int(metadata.version(name).partition(".")[0])
    except metadata.PackageNotFoundError:
        return 0

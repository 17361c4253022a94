"""Distribution strategies by name: a device, the devices of a machine, the workers of a cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

NAMES = ("none", "mirrored", "multiworker")


def make(name: str) -> tf.distribute.Strategy:
    """The strategy of that name; has to be made before TensorFlow does anything else.

    Args:
        name: "none", "mirrored" for all GPUs of this machine (or all logical CPU devices, where
            there is no GPU), or "multiworker" for the workers that TF_CONFIG lists.

    Raises:
        ValueError: "multiworker" without TF_CONFIG, or another name.
    """
    import tensorflow as tf  # seconds to import: the names are read without it

    if name == "none":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    if name != "multiworker":
        raise ValueError(f"`strategy` must be one of {', '.join(NAMES)}. Received: {name!r}.")
    if not os.environ.get("TF_CONFIG"):
        raise ValueError(
            "The strategy 'multiworker' needs the environment variable TF_CONFIG. Received: none. "
            """Set it on each worker: {"cluster": {"worker": ["host1:port", "host2:port"]}, """
            """"task": {"type": "worker", "index": 0}}."""
        )
    return tf.distribute.MultiWorkerMirroredStrategy()

"""Start TensorFlow, train a step, say what it runs on: a child process of doctor.

In a process of its own, for a TensorFlow that does not fit the processor or the other packages ends
the process, and what TensorFlow prints at its start is only seen from outside. Prints one line of
JSON: what `describe_device` says.
"""

from __future__ import annotations

import json

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf.timing.device import describe_device


def main() -> None:
    """Train one elastic step of a tiny network."""
    model = et.ElasticModel.from_model(
        tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(2,)), tf.keras.layers.Dense(1)])
    )
    model.compile("sgd", "mse")
    model.set_mask(np.array([False, False, True, True]))
    model.fit(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32), batch_size=4, verbose=0)
    et.optimizers.by_name("sgdw", 1e-4)  # TensorFlow Addons announces its end when it is loaded
    print(json.dumps(describe_device()))


if __name__ == "__main__":
    main()

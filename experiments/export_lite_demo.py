"""Writes experiments/lite_demo/: a small network that knows digits, and images of another domain.

    python experiments/export_lite_demo.py

The network has learnt scikit-learn's handwritten digits as they are; the images are those of
`make demo`: turned, inverted, paler and noisy. `make demo-lite` adapts it without TensorFlow.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import numpy as np
import tensorflow as tf

from elastic_tf.app.commands.harness import DOMAINS
from elastic_tf.app.data import digits
from elastic_tf.app.export import litert

FOLDER = Path(__file__).parent / "lite_demo"
SIZE, BATCH, EPOCHS = 32, 16, 12
WIDTHS = (24, 48, 96)
L = tf.keras.layers


def main() -> None:
    """Pre-train, export, and write the images of the other domain."""
    tf.keras.utils.set_random_seed(0)
    layers = [L.Input((SIZE, SIZE, 1)), L.Rescaling(1 / 127.5, -1.0)]
    for width in WIDTHS:
        layers += [L.Conv2D(width, 3, 2, "same", use_bias=False), L.BatchNormalization(), L.ReLU()]
    network = tf.keras.Sequential([*layers, L.GlobalAveragePooling2D(), L.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    (x, y), held = digits(image_size=SIZE)
    steps = EPOCHS * len(x) // BATCH
    network.compile(et.optimizers.adam(et.optimizers.cosine(3e-3, steps)), loss, ["accuracy"])
    network.fit(x, y, batch_size=BATCH, epochs=EPOCHS, validation_data=held, verbose=2)

    model = et.ElasticModel.from_model(network)
    model.compile(et.optimizers.adam(2e-3), loss)
    shutil.rmtree(FOLDER, ignore_errors=True)
    litert(model, FOLDER, rhos=(0.4, 0.7, 1.0), batch_size=BATCH)
    for module in FOLDER.glob("*.py"):
        module.unlink()  # the demo takes those of elastic_tf/lite
    (x, y), (x_test, y_test) = digits(image_size=SIZE, shift=DOMAINS["digits:shifted"])
    arrays = {"x": x[:750], "y": y[:750], "x_test": x_test[:360], "y_test": y_test[:360]}
    np.savez_compressed(FOLDER / "digits.npz", **arrays)
    size = sum(file.stat().st_size for file in FOLDER.iterdir())
    print(f"'{FOLDER}': {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

"""Adapts the network of experiments/lite_demo/ without TensorFlow; `make demo-lite` runs it.

The network has learnt scikit-learn's handwritten digits as they are; the images are those of
`make demo`: turned, inverted, paler and noisy. Where elastic_tf is, that folder is written anew by

    python experiments/lite_demo.py write
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "lite_demo"
SIZE, BATCH, EPOCHS, WIDTHS = 32, 16, 12, (24, 48, 96)  # of what is written


def main() -> None:
    """Evaluate, fit, evaluate."""
    # as in an exported folder, where the modules lie beside the file: TensorFlow is never imported
    sys.path.insert(0, str(HERE.parent / "elastic_tf" / "lite"))
    from trainer import Trainer

    began = time.perf_counter()
    with np.load(FOLDER / "digits.npz") as file:
        data = {name: file[name] for name in file}
    test = data["x_test"], data["y_test"]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(FOLDER)
        before = trainer.evaluate(*test)["accuracy"]
        state = Path(folder) / "demo.state"
        trainer.fit(data["x"], data["y"], epochs=8, seconds=40.0, state=state)
        after = trainer.evaluate(*test)["accuracy"]
    print(f"Accuracy on the other domain: {before:.1%} before, {after:.1%} after adapting")
    print(f"Seconds: {time.perf_counter() - began:.1f}")
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = [one for one in status.read_text().splitlines() if one.startswith("VmHWM")]
        print(f"Memory of the process at most: {int(line.split()[1]) / 1024:.0f} MiB")


def write() -> None:
    """Pre-train, export, and write the images of the other domain."""
    import elastic_tf as et  # before TensorFlow: it quiets its start-up

    # isort: split
    import tensorflow as tf

    from elastic_tf.app.commands.harness import DOMAINS
    from elastic_tf.app.data import digits

    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(0)
    chain = [layers.Input((SIZE, SIZE, 1)), layers.Rescaling(1 / 127.5, -1.0)]
    for width in WIDTHS:
        convolution = layers.Conv2D(width, 3, 2, "same", use_bias=False)
        chain += [convolution, layers.BatchNormalization(), layers.ReLU()]
    network = tf.keras.Sequential([*chain, layers.GlobalAveragePooling2D(), layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    (x, y), held = digits(image_size=SIZE)
    rate = et.optimizers.cosine(3e-3, EPOCHS * len(x) // BATCH)
    network.compile(et.optimizers.adam(rate), loss, ["accuracy"])
    network.fit(x, y, batch_size=BATCH, epochs=EPOCHS, validation_data=held, verbose=2)

    model = et.ElasticModel.from_model(network)
    model.compile(et.optimizers.adam(2e-3), loss)
    shutil.rmtree(FOLDER, ignore_errors=True)
    et.export.litert(model, FOLDER, rhos=(0.4, 0.7, 1.0), batch_size=BATCH)
    for module in FOLDER.glob("*.py"):
        module.unlink()  # the demo takes those of elastic_tf/lite
    (x, y), (x_test, y_test) = digits(image_size=SIZE, shift=DOMAINS["digits:shifted"])
    arrays = {"x": x[:750], "y": y[:750], "x_test": x_test[:360], "y_test": y_test[:360]}
    np.savez_compressed(FOLDER / "digits.npz", **arrays)


if __name__ == "__main__":
    write() if sys.argv[1:] == ["write"] else main()

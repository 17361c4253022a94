"""Pre-train the demo's model on the clean digits.

The committed weights were made by `python experiments/pretrain_digits.py`, those of the demo with
`--image-size 64 --out experiments/weights/digits_resnet_64.weights.h5`: 99.6 % right of the clean
test images.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import elastic_tf as et  # before TensorFlow: it quiets its start-up

# isort: split
import tensorflow as tf

from elastic_tf.app.commands import harness
from elastic_tf.app.commands.commandline import option, parse

WEIGHTS = Path(__file__).parent / "weights" / "digits_resnet.h5"
IMAGE_SIZE = 32
BATCH, RATE = 32, 2e-3  # the rate of Adam falls on a cosine to zero
MOVE, TURN = 0.06, 0.02  # shares of the size, and of a full turn, at random


@dataclasses.dataclass(frozen=True)
class Settings:
    """One pre-training."""

    out: Path = option(WEIGHTS.with_suffix(".weights.h5"), help="file for the weights")
    image_size: int = option(IMAGE_SIZE, help="height and width of the images in pixels")
    epochs: int = option(30, help="passes over the training images")
    quiet: bool = option(False, help="show no progress bar")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train on the clean digits, save the weights; returns the accuracy on the clean test part."""
    settings = parse(Settings, __doc__ or "", arguments)
    tf.keras.utils.set_random_seed(0)
    data = et.data.from_arrays(
        *et.data.digits(image_size=settings.image_size),
        batch_size=BATCH,
        seed=0,
    )
    model = et.zoo.build(
        "digits_resnet", classes=data.classes, input_size=settings.image_size, bn_training=True
    )
    augment = tf.keras.Sequential(
        [
            tf.keras.layers.RandomTranslation(MOVE, MOVE, fill_mode="constant"),
            tf.keras.layers.RandomRotation(TURN, fill_mode="constant"),
        ]
    )
    steps = settings.epochs * data.steps_per_epoch
    model.compile(
        et.optimizers.by_name("adam", et.optimizers.cosine(RATE, steps)),
        harness.loss(),
        metrics=["accuracy"],
    )
    model.fit(
        data.train.map(lambda x, y: (augment(x, training=True), y)),
        epochs=settings.epochs,
        verbose=0 if settings.quiet else "auto",
    )
    _, accuracy = model.evaluate(data.test, verbose=0)
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    model.save_weights(settings.out)
    print(f"Accuracy on clean test images {accuracy:.1%}. Written to {settings.out}")
    return accuracy


if __name__ == "__main__":
    main()

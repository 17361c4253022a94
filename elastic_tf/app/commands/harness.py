"""What trainings and experiments share: a network and images by name, and a compiled model."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf.app import class_folders, data
from elastic_tf.app.commands.settings import TFDS, Step, Train
from elastic_tf.app.commands.settings import images as check_images
from elastic_tf.app.data import ImageData, Labelled, Shift
from elastic_tf.choose.budget.course import RATE
from elastic_tf.train.head.targets import classifier_of

FILE = ".keras"  # the end of a file of a network
# Domains of the handwritten digits; the committed weights know them as they are.
DOMAINS = {
    "digits": None,
    "digits:shifted": Shift(rotation=45.0, contrast=0.8, inverted=True, noise=40.0),
    "digits:turned": Shift(rotation=60.0, noise=20.0),
    "digits:inverted": Shift(inverted=True, noise=20.0),
}


def input_shape(step: Step) -> tuple[int, int]:
    """Height, which is the width, and channels of the images that the network takes."""
    size = step.input_size
    if not step.model.endswith(FILE):
        return size, et.zoo.ARCHITECTURES[step.model].channels
    shape = _read(step.model)["shape"]
    _, height, width, channels = shape if isinstance(shape, tuple) and len(shape) == 4 else [0] * 4
    if (height or size) != (width or size) or channels not in (1, 3):
        raise ValueError(
            "`model` must take square images of 1 or 3 channels, which come last. Received: "
            f"'{step.model}' with inputs of {shape}. Call et.finetune for others."
        )
    return height or size, channels


@functools.lru_cache(maxsize=1)
def _read(file: str) -> dict[str, Any]:
    """The shape of what the network in a file takes, and the network for whoever asks first."""
    model = tf.keras.models.load_model(file)
    return {"shape": model.input_shape, "network": model}


def network(step: Step, classes: int, weights: Any = None) -> tf.keras.Model:
    """The network that a command names; `weights` may be the word "none".

    Of a file, with its weights and a new head.
    """
    if step.model.endswith(FILE):
        held = _read(step.model).pop("network", None)
        return classifier_of(held or tf.keras.models.load_model(step.model), classes)
    options = {name: getattr(step, name) for name in ("input_size", "alpha", "bn_training")}
    weights = None if weights == "none" else weights
    return et.zoo.build(step.model, classes=classes, weights=weights, **options)


def loss() -> tf.keras.losses.Loss:
    """Cross-entropy of the logits that the zoo's models return."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model: tf.keras.Model, optimizer: str, learning_rate: Any) -> et.ElasticModel:
    """`model` if it is elastic, or one that shares its weights; with a new optimizer."""
    elastic = et.ElasticModel.from_model(model)
    chosen = et.optimizers.by_name(optimizer, learning_rate)
    elastic.compile(chosen, loss(), metrics=["accuracy"])
    return elastic


def learning_rate(settings: Train) -> float:
    """The learning rate of a training at its highest."""
    return RATE if settings.learning_rate is None else settings.learning_rate


def untrained(step: Step, classes: int) -> et.ElasticModel:
    """The compiled network of a command that trains nothing: only its shapes count."""
    return compiled(network(step, classes), step.optimizer, 1e-4)


def with_images(settings: Train) -> tuple[Train, ImageData]:
    """The settings with the image size of the network, and the images that they name."""
    size, channels = input_shape(settings)
    if size != settings.input_size:
        print(f"Images become {size} x {size} pixels, as '{settings.model}' takes them.")
        settings = dataclasses.replace(settings, input_size=size)
    return settings, images(
        settings.data,
        channels=channels,
        image_size=size,
        batch_size=settings.batch_size,
        seed=settings.seed,
        augment=settings.augment,
        validation_share=settings.validation,
        on_bad_image="skip" if settings.skip_bad_images else "raise",
    )


def images(
    source: str, *, channels: int, image_size: int, on_bad_image: str = "raise", **options: Any
) -> ImageData:
    """The images that `--data` names, of the size and the channels (1 or 3) that a model takes.

    `options` are those of `et.data.Batching`. What is not there is a `FileNotFoundError`,
    what does not fit the model a `ValueError`.
    """
    check_images("data", source)
    path, parts = Path(source), None
    if source.startswith("digits") and not path.exists():
        parts = data.digits(image_size=image_size, shift=DOMAINS[source])
    elif path.suffix == ".npz":
        parts = data.arrays(source)
        x = parts[0][0]
        if x.dtype.kind == "f" and x.max() <= 1.0:  # white would be nearly black to a network
            raise ValueError(
                "Images must have values from 0 to 255: the networks scale them themselves. "
                f"Received: '{source}' with {x.dtype} from {x.min():g} to {x.max():g} in x_train. "
                "Multiply x_train and x_test by 255."
            )
    if parts is not None:
        return data.from_arrays(*(_fitted(part, image_size, channels) for part in parts), **options)
    if channels != 3:
        raise ValueError(
            f"Files of images are read as RGB. Received: {source!r} for a model that takes grey "
            "images. Use another model, or an .npz file of grey images."
        )
    if source.startswith(TFDS) and not path.exists():
        return data.tfds_images(source.removeprefix(TFDS), image_size=image_size, **options)
    return data.image_folder(path, image_size=image_size, on_bad_image=on_bad_image, **options)


def counts(step: Step, source: str, *, all_images: bool = False) -> tuple[int, int]:
    """How many classes the named images have, and how many there are to train on, or 0."""
    if Path(source).is_dir():
        names = class_folders.class_names(Path(source))
        train = class_folders.parted(Path(source), names, 0)[0][0] if all_images else ()
        return len(names), len(train)
    if source.startswith(TFDS) and not all_images:
        return data.tfds_classes(source.removeprefix(TFDS)), 0  # which need not be there
    size, channels = input_shape(step)
    found = images(source, channels=channels, image_size=size, batch_size=1)
    return found.classes, found.train_count


def _fitted(part: Labelled, size: int, channels: int) -> Labelled:
    """Images of that height and width, smoothed where they become smaller; grey may become RGB."""
    x, y = part
    if x.shape[1:3] != (size, size):
        smaller = tf.image.resize(x, (size, size), antialias=True).numpy()
        x = np.clip(np.rint(smaller), 0, 255).astype(np.uint8)
    if x.shape[-1] == channels:
        return x, y
    if x.shape[-1] == 1:
        return np.repeat(x, channels, axis=-1), y
    raise ValueError(
        f"The model takes images of {channels} channels. Received: {x.shape[-1]} channels. Use "
        "another model, or images of 1 channel, which serve every model."
    )

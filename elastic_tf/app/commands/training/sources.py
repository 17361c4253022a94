"""The images of a run by name: a folder, arrays, TensorFlow Datasets, or handwritten digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.app import class_folders, data
from elastic_tf.app.commands import options as checks
from elastic_tf.app.commands.training import harness
from elastic_tf.app.data import ImageData, Labelled, Shift

# Domains of the handwritten digits; the committed weights know them as they are.
DOMAINS = {
    "digits": None,
    "digits:shifted": Shift(rotation=45.0, contrast=0.8, inverted=True, noise=40.0),
    "digits:turned": Shift(rotation=60.0, noise=20.0),
    "digits:inverted": Shift(inverted=True, noise=20.0),
}


def of(settings: Any) -> ImageData:
    """The images that the settings of a training name, as its model takes them."""
    return load(
        settings.data,
        channels=harness.input_shape(settings)[1],
        image_size=settings.input_size,
        batch_size=settings.batch_size,
        seed=settings.seed,
        augment=settings.augment,
        validation_share=settings.validation,
        on_bad_image="skip" if settings.skip_bad_images else "raise",
    )


def load(
    source: str, *, channels: int, image_size: int, on_bad_image: str = "raise", **options: Any
) -> ImageData:
    """The images that `--data` names, of the size and the channels (1 or 3) that a model takes.

    `options` are those of `et.data.Batching`. What is not there is a `FileNotFoundError`,
    what does not fit the model a `ValueError`.
    """
    checks.images("data", source)
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
    if source.startswith(checks.TFDS) and not path.exists():
        return data.tfds_images(source.removeprefix(checks.TFDS), image_size=image_size, **options)
    return data.image_folder(path, image_size=image_size, on_bad_image=on_bad_image, **options)


def counts(settings: Any, *, images: bool = False) -> tuple[int, int]:
    """How many classes the images of a measurement have, and how many images to train on, or 0."""
    source, channels = settings.data, harness.input_shape(settings)[1]
    if Path(source).is_dir():
        names = class_folders.class_names(Path(source))
        return len(names), len(class_folders.parted(Path(source), names, 0)[0][0]) if images else 0
    if source.startswith(checks.TFDS) and not images:
        return data.tfds_classes(source.removeprefix(checks.TFDS)), 0  # which need not be there
    found = load(source, channels=channels, image_size=settings.input_size, batch_size=1)
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

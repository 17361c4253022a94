"""The images of a run by name: a folder, arrays, TensorFlow Datasets, or handwritten digits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elastic_tf import data
from elastic_tf.commands import names
from elastic_tf.data import ImageData, Labelled, Shift, augmentation

TFDS = "tfds:"  # before the name of one of TensorFlow Datasets
DIGITS = "digits"
# Domains of the handwritten digits; the committed weights know them as they are.
DOMAINS = {
    "digits": None,
    "digits:shifted": Shift(rotation=45.0, contrast=0.8, inverted=True, noise=40.0),
    "digits:turned": Shift(rotation=60.0, noise=20.0),
    "digits:inverted": Shift(inverted=True, noise=20.0),
}
HELP = (
    "folder with train/CLASS/*.jpg and test/CLASS/*.jpg, FILE.npz with x_train, y_train, x_test, "
    f"y_test, {TFDS}NAME, or {', '.join(DOMAINS)}"
)


def load(
    source: str,
    *,
    channels: int,
    image_size: int,
    batch_size: int,
    seed: int = 0,
    flip: bool = False,
    augment: Sequence[str] = (),
    validation_share: float = 0.0,
    on_bad_image: str = "raise",
) -> ImageData:
    """The images that `source` names, of the size and the channels that a model takes.

    Args:
        source: see `HELP`.
        channels: 3 (RGB) or 1 (grey).
        image_size: height and width in pixels.
        batch_size: images in a batch.
        seed: of order, augmentation and split.
        flip: mirror training images at random.
        augment: of `augmentation.NAMES`.
        validation_share: share of the training images that becomes the validation part.
        on_bad_image: "raise" or "skip", for folders.

    Raises:
        FileNotFoundError: no such file or folder, or data that cannot be downloaded.
        ValueError: an unknown name, or data that do not fit the model.
    """
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "seed": seed,
        "flip": flip,
        "augment": augment,
        "validation_share": validation_share,
    }
    if _is_digits(source):
        check(source)
        parts = data.digits(image_size=image_size, shift=DOMAINS[source])
        return data.from_arrays(*(coloured(part, channels) for part in parts), **options)
    if Path(source).suffix == ".npz":
        parts = data.arrays(source)
        _check_range(source, parts[0])
        fitting = (coloured(resized(part, image_size), channels) for part in parts)
        return data.from_arrays(*fitting, **options)
    if channels != 3:
        raise ValueError(
            f"Files of images are read as RGB. Received: {source!r} for a model that takes grey "
            "images. Use another model, or an .npz file of grey images."
        )
    check(source)
    if source.startswith(TFDS):
        return data.tfds_images(source[len(TFDS) :], image_size=image_size, **options)
    return data.image_folder(source, image_size=image_size, on_bad_image=on_bad_image, **options)


def check(source: str) -> None:
    """Refuse images that are not there, before TensorFlow is loaded to read them.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: an unknown domain of the digits.
    """
    if _is_digits(source):
        if source not in DOMAINS:
            raise ValueError(
                f"The digits are {', '.join(DOMAINS)}. Received: {source!r}. Use one of these."
            )
    elif not (source.startswith(TFDS) or Path(source).suffix == ".npz" or Path(source).exists()):
        raise FileNotFoundError(
            f"`data` must be a {HELP}. Received: '{source}', which is not there. Sets of "
            f"TensorFlow Datasets are {', '.join(TFDS + name for name in names.DATA_SETS)}."
        )


def _is_digits(source: str) -> bool:
    return source.startswith(DIGITS) and not Path(source).exists()


def _check_range(source: str, train: Labelled) -> None:
    """Refuse images whose white is nearly black to a network."""
    x = train[0]
    if x.dtype.kind == "f" and x.max() <= 1.0:
        raise ValueError(
            "Images must have values from 0 to 255: the networks scale them themselves. Received: "
            f"'{source}' with {x.dtype} from {x.min():g} to {x.max():g} in x_train. Multiply "
            "x_train and x_test by 255."
        )


def resized(part: Labelled, size: int) -> Labelled:
    """Images of that height and width, with smoothing where they become smaller."""
    x, y = part
    if x.shape[1:3] == (size, size):
        return part
    import tensorflow as tf  # seconds to import, as in `load`

    smaller = tf.image.resize(x, (size, size), antialias=True).numpy()
    return np.clip(np.rint(smaller), 0, 255).astype(np.uint8), y


def coloured(part: Labelled, channels: int) -> Labelled:
    """Images of that number of channels; grey ones become grey RGB.

    Raises:
        ValueError: RGB images for a model that takes grey ones, or no images of either kind.
    """
    x, y = part
    if x.shape[-1] == channels:
        return part
    if x.shape[-1] == 1:
        return np.repeat(x, channels, axis=-1), y
    raise ValueError(
        f"The model takes images of {channels} channels. Received: {x.shape[-1]} channels. Use "
        "another model, or images of 1 channel, which serve every model."
    )


def augmentations(text: str) -> tuple[str, ...]:
    """Names from a command line: separated by commas, "none" for none.

    Raises:
        ValueError: an unknown name.
    """
    given = tuple(name.strip() for name in text.split(",") if name.strip() not in ("", "none"))
    augmentation.check(given, batch_size=2)
    return given

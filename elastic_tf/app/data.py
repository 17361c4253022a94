"""Images to train on: class folders, arrays, TensorFlow Datasets, handwritten digits.

Pixels are 0 to 255; the models of `zoo` scale them themselves.
"""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.app import class_folders
from elastic_tf.app.pipelines import (
    Batching,
    ImageData,
    Source,
    augmentation,
    batched,
    fits_memory,
    from_rows,
)
from elastic_tf.arguments import extra
from elastic_tf.files import as_utf8, read_arrays, read_bytes
from elastic_tf.timing import usable_cores

__all__ = [
    "Batching",
    "ImageData",
    "Labelled",
    "Shift",
    "arrays",
    "augmentation",
    "digits",
    "from_arrays",
    "image_folder",
    "tfds_classes",
    "tfds_images",
]

Labelled = tuple[np.ndarray, np.ndarray]

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_MOST_LABEL = 10**6
_MOST_SIZE = 8192  # pixels of a side
_MOST_DIGIT = 1024  # of a digit; they are enlarged all at once
_MOST_BYTES = 2**28  # of an image file
# Compressed images that are held in memory at a time, some 200 MB. TensorFlow Datasets stores the
# examples in a random order, so that a window of them is as good as all.
_SHUFFLED = 2048
_TEST_PERCENT = 20  # of the training split, where there is no other


def image_folder(
    path: str | os.PathLike[str],
    *,
    image_size: int,
    on_bad_image: str = "raise",
    **options: Any,
) -> ImageData:
    """Images from PATH/train/CLASS/ and PATH/test/CLASS/ (JPEG, PNG, BMP, GIF), always RGB.

    Where there is PATH/CLASS/ alone, a fifth of each class, drawn by the seed, is for tests. Every
    file is decoded once before anything is trained, lest an error end a training of hours. Decoded
    images are kept in memory if they take at most a quarter of it; else every pass decodes anew.

    Args:
        path: the folder. Hidden files and what lies beside the class folders are not looked at.
        image_size: height and width to which images are squeezed, in pixels.
        on_bad_image: "raise" on a file that is no image, or "skip" and train on the rest.
        **options: of `Batching`: batch_size, seed, augment, validation_share.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: a setting out of range, classes that are missing, empty, or differ between
            train and test, a file that is no image, or fewer training images than a batch.
    """
    root = Path(arguments.path("path", path))
    # What is wrong with an argument is said before thousands of images are decoded.
    batching = Batching(**options)
    arguments.count("image_size", image_size, most=_MOST_SIZE)
    arguments.choice("on_bad_image", on_bad_image, ("raise", "skip"))
    names = class_folders.class_names(root)
    parts = class_folders.parted(root, names, batching.seed)
    keep = fits_memory(sum(len(paths) for paths, _ in parts), (image_size, image_size, 3))
    found, skipped = [], []
    for part, (paths, labels) in zip(class_folders.PARTS, parts):
        pixels, good = _decoded(paths, image_size, keep=keep, skip_bad=on_bad_image == "skip")
        if empty := [name for label, name in enumerate(names) if label not in labels[good]]:
            raise ValueError(
                f"Every class must have an image to {part}. Received: class {empty[0]!r} of "
                f"'{root}' without one. Add images, or remove the class."
            )
        skipped += [path for path, is_good in zip(paths, good) if not is_good]
        # as bytes: names of files need not be text
        files = [os.fsencode(path) for path, is_good in zip(paths, good) if is_good]
        found.append((pixels if keep else files, labels[good]))

    def decoded(row: tf.Tensor) -> tf.Tensor:
        return row if keep else decode(tf.io.read_file(row), image_size)

    classes = [as_utf8(name) for name in names]
    return from_rows(
        *found, batching=batching, decode=decoded, class_names=classes, skipped=skipped
    )


def decode(contents: tf.Tensor, size: int) -> tf.Tensor:
    """The image in `contents` (JPEG, PNG, BMP, first frame of a GIF), as RGB uint8 (size, size, 3).

    The whole image is squeezed into the square, with smoothing where it becomes smaller. Of 16 bits
    per channel the upper 8 are kept, CMYK becomes RGB, what is transparent keeps its colour, and an
    orientation that a camera has written beside the pixels is not applied.
    """
    image = tf.io.decode_image(contents, channels=3, expand_animations=False)
    image.set_shape((None, None, 3))
    image = tf.image.resize(image, (size, size), antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)


def read_image(path: str, size: int) -> np.ndarray:
    """The image in a file, as `decode` makes it; a ValueError says why there is none."""
    try:
        return decode(read_bytes(path, _MOST_BYTES), size).numpy()
    except (OSError, ValueError, tf.errors.OpError) as error:
        # TensorFlow puts the place in its graph before and after what it has to say.
        said = getattr(error, "strerror", "") or getattr(error, "message", "") or str(error)
        why = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", said).strip(" .")
        raise ValueError(
            f"An image file must be a JPEG, PNG, BMP or GIF. Received: {path!r}: {why}"
        ) from error


def _decoded(
    paths: Sequence[str], size: int, *, keep: bool, skip_bad: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of all images, uint8 (count, size, size, 3), if kept; and which files are such."""
    pixels = np.empty((len(paths) if keep else 0, size, size, 3), np.uint8)

    def is_image(index: int) -> bool:
        try:
            image = read_image(paths[index], size)
        except ValueError as error:
            if skip_bad:
                return False
            raise ValueError(
                f"{error}. Remove it, or train on the rest with on_bad_image='skip' "
                "(--skip-bad-images)."
            ) from error
        if keep:
            pixels[index] = image
        return True

    # TensorFlow decodes without Python's lock: threads use all cores.
    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        good = np.fromiter(pool.map(is_image, range(len(paths))), bool)
    return (pixels if good.all() or not keep else pixels[good]), good


def from_arrays(train: Labelled, test: Labelled, **options: Any) -> ImageData:
    """Batches of images (count, height, width, channels) and labels (count,), the class names.

    `options` are those of `Batching`: batch_size, seed, augment, validation_share. A ValueError
    says what is out of range, what does not fit together, or that there is no full batch.
    """
    batching = Batching(**options)
    x, y = _checked("train", *train)
    x_test, y_test = _checked("test", *test)
    if x.shape[1:] != x_test.shape[1:]:
        raise ValueError(
            "The training and the test part must have images of one shape. Received: "
            f"{x.shape[1:]} and {x_test.shape[1:]}."
        )
    count = 1 + max(y.max(), y_test.max())
    if len(empty := np.setdiff1d(np.arange(count), y)):
        warnings.warn(
            f"Each class, 0 to {count - 1}, should have training images. Received: none of "
            f"{arguments.brief(empty.tolist())}. Look at the labels, or number those that there "
            "are from 0, with np.unique(y, return_inverse=True).",
            stacklevel=2,
        )
    names = [str(label) for label in range(count)]
    return from_rows((x, y), (x_test, y_test), batching=batching, class_names=names)


def arrays(path: str | os.PathLike[str]) -> tuple[Labelled, Labelled]:
    """(x_train, y_train), (x_test, y_test) of an .npz file with arrays of these names.

    Images are (count, height, width, channels) as they are in the file, a channel added where there
    is none; labels int64 (count,). A ValueError says which arrays are missing or do not fit.
    """
    path = arguments.file("path", path, "an .npz file")
    try:
        found = read_arrays(path, _ARRAYS)
    except (OSError, ValueError) as error:
        raise ValueError(f"`path` must be an .npz file. Received: '{path}' {error}.") from error
    if missing := [name for name in _ARRAYS if name not in found]:
        raise ValueError(
            f"The file must hold {', '.join(_ARRAYS)}. Received: '{path}' without "
            f"{', '.join(missing)}; it holds {', '.join(found) or 'nothing'}."
        )
    for name, part in found.items():
        if name.startswith("x") and part.ndim == 3:
            found[name] = part[..., np.newaxis]
        elif part.shape[1:] == (1,):  # labels in one column
            found[name] = part.reshape(-1)
    train, test = (
        _checked(f"{part} of '{path}'", found[f"x_{part}"], found[f"y_{part}"])
        for part in ("train", "test")
    )
    return train, test


def _checked(part: str, x: Any, y: Any) -> Labelled:
    """Images and their labels as int64, if they are such."""
    x, y = arguments.array(part, x), arguments.array(part, y)
    if x.ndim != 4 or not x.size or x.dtype.kind not in "uif" or not np.isfinite(x).all():
        raise ValueError(
            "Images must be finite numbers of shape (count, height, width, channels). Received: "
            f"{x.dtype} of shape {x.shape} in {part}: {arguments.brief(x.tolist())}."
        )
    is_whole = y.dtype.kind in "ui" and y.shape == (len(x),)
    if not is_whole or int(y.min()) < 0 or y.max() > _MOST_LABEL:
        raise ValueError(
            f"The labels of {len(x)} images must be as many integers from 0 to {_MOST_LABEL}. "
            f"Received: {y.dtype} of shape {y.shape} in {part}: {arguments.brief(y.tolist())}."
        )
    return x, y.astype(np.int64)


@dataclasses.dataclass(frozen=True)
class Shift:
    """How another domain looks: applied in the order of the attributes."""

    rotation: float = 0.0  #: degrees, counter-clockwise
    contrast: float = 1.0  #: distance of every pixel from mid-grey relative to the original
    inverted: bool = False  #: dark on bright
    noise: float = 0.0  #: standard deviation of Gaussian noise in grey levels of 255


def digits(
    *, image_size: int = 32, shift: Shift | None = None, seed: int = 0
) -> tuple[Labelled, Labelled]:
    """The 1797 handwritten digits that come with scikit-learn, as they are or in another domain.

    `seed` is that of the noise and of the split, the same in every domain. `image_size` is what the
    8x8 originals are enlarged to.

    Returns:
        (x_train, y_train), (x_test, y_test): uint8 (count, image_size, image_size, 1) of 0 to 255,
        bright on dark; int64 (count,). Three in ten of each class are in the test part.

    Source: Alpaydin & Kaynak, Optical Recognition of Handwritten Digits, UCI 1998.
    """
    with extra("data"):
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

    image_size = arguments.count("image_size", image_size, least=8, most=_MOST_DIGIT)
    x, y = load_digits(return_X_y=True)
    # Originals are 0 to 16.
    x = tf.image.resize(x.reshape(-1, 8, 8, 1) * (255 / 16), (image_size, image_size)).numpy()
    x = _shifted(x, shift or Shift(), np.random.default_rng(seed))
    x = np.clip(np.rint(x), 0, 255).astype(np.uint8)
    x_train, x_test, y_train, y_test = train_test_split(
        x, y.astype(np.int64), test_size=0.3, stratify=y, random_state=seed
    )
    return (x_train, y_train), (x_test, y_test)


def _shifted(x: np.ndarray, shift: Shift, generator: np.random.Generator) -> np.ndarray:
    """The images (count, size, size, 1) in another domain, not yet clipped to 0..255."""
    if shift.rotation:
        from scipy import ndimage

        options = {"axes": (1, 2), "reshape": False, "order": 1, "mode": "grid-constant"}
        x = ndimage.rotate(x, shift.rotation, **options)
    x = 127.5 + (x - 127.5) * shift.contrast
    if shift.inverted:
        x = 255 - x
    return x + shift.noise * generator.standard_normal(x.shape)


def tfds_images(name: str, *, image_size: int = 224, **options: Any) -> ImageData:
    """Images of a data set of TensorFlow Datasets, decoded and resized in every pass.

    Where it is not prepared in TFDS_DATA_DIR (~/tensorflow_datasets), it is downloaded. Tested is
    on its test split, or its validation split, or else the last fifth of the training split.

    Args:
        name: any set of images with one class each: "cifar10", "food101:2.0.0".
        image_size: height and width to which images are squeezed, in pixels.
        **options: of `Batching`. The validation part is in whole percents of the training split,
            the same for every seed.

    Raises:
        FileNotFoundError: the data are not there and cannot be downloaded.
        ValueError: an unknown data set, one of another kind, or a setting out of range.
    """
    batching = Batching(**options)
    arguments.count("image_size", image_size, most=_MOST_SIZE)
    builder, image, label = _found(name)
    import tensorflow_datasets as tfds

    # The images stay compressed until they are shuffled; other features are not read.
    decoders = tfds.decode.PartialDecoding(
        {image: True, label: True}, decoders={image: tfds.decode.SkipDecoding()}
    )
    try:
        builder.download_and_prepare()
        splits = _splits(builder.info.splits, batching.validation_share)
        read = builder.as_dataset(split=splits, decoders=decoders)
    except Exception as error:  # the network, a checksum, an archive, a package that is missing
        raise FileNotFoundError(
            f"The data set must be prepared, or be there to download. Received: '{name}' in "
            f"'{builder.data_path.parent.parent}': {type(error).__name__}: {error} Prepare it "
            f"where there is a network (`tfds build {name} --data_dir DIR`), copy DIR/{name} to "
            "this machine, and give its DIR in TFDS_DATA_DIR."
        ) from error

    def load(example: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        return decode(example[image], image_size), example[label]

    sources = {part: Source(examples, load) for part, examples in read.items()}
    parts = sources["train"], sources["test"], sources.get("validation")
    names = builder.info.features[label].names
    return batched(*parts, batching=batching, class_names=names, window=_SHUFFLED)


def tfds_classes(name: str) -> int:
    """Number of classes of a data set, which need not be there."""
    builder, _, label = _found(name)
    return builder.info.features[label].num_classes


def _found(name: str) -> tuple[Any, str, str]:
    """The builder of a set of images with a class each, and the names of image and class in it."""
    with extra("data"):  # seconds to import: only for those who need it
        import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(arguments.instance("name", name, str, "a text"))
    except tfds.core.DatasetNotFoundError as error:
        near = arguments.nearest(name, tfds.list_builders())
        raise ValueError(
            f"`name` must be a set of TensorFlow Datasets. Received: name={name!r}. "
            + (f"Did you mean {near!r}?" if near else "tfds.list_builders() names them.")
        ) from error
    features, keys = builder.info.features, builder.info.supervised_keys or ()
    kinds = tfds.features.Image, tfds.features.ClassLabel
    if len(keys) != 2 or not all(isinstance(features[k], kind) for k, kind in zip(keys, kinds)):
        raise ValueError(
            f"A data set must have images with one class each. Received: {name!r}, which has "
            f"{', '.join(features)}. Use another one, or a folder of images."
        )
    return builder, *keys


def _splits(known: Collection[str], share: float) -> dict[str, str]:
    """What to read as training, test and validation part; all have both splits if none is known."""
    others = [one for one in ("test", "validation") if one in known]
    last = 100 if others or not known else 100 - _TEST_PERCENT
    percent = min(round(last * share), last - 1)
    test = "test" if not known else others[0] if others else f"train[{last}%:]"
    found = {"train": f"train[{percent}%:{last}%]", "test": test}
    return {**found, "validation": f"train[:{percent}%]"} if percent else found

"""Image data sets read through TensorFlow Datasets."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.app.data.folder import decode
from elastic_tf.app.data.pipelines import MOST_SIZE, Batching, ImageData, Source, batched
from elastic_tf.arguments import extra

# Compressed images that are held in memory at a time, some 200 MB. TensorFlow Datasets stores the
# examples in a random order, so that a window of them is as good as all.
_SHUFFLED = 2048
_TEST_PERCENT = 20  # of the training split, where there is no other


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
    arguments.count("image_size", image_size, most=MOST_SIZE)
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

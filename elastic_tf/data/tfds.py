"""The paper's data sets, read through TensorFlow Datasets."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.data.folder import decode
from elastic_tf.data.pipelines import MOST_SIZE, Batching, ImageData, Source, batched

#: Data sets that can be read by name.
NAMES = ("caltech_birds2011", "oxford_iiit_pet", "stanford_dogs")

# Compressed images that are held in memory at a time, some 200 MB. TensorFlow Datasets stores the
# examples in a random order, so that a window of them is as good as all.
_SHUFFLED = 2048


def tfds_images(name: str, *, image_size: int = 224, **options: Any) -> ImageData:
    """Images of a data set of TensorFlow Datasets, decoded and resized in every pass.

    Where it is not prepared in TFDS_DATA_DIR (~/tensorflow_datasets), it is downloaded.

    Args:
        name: one of `NAMES`.
        image_size: height and width to which images are squeezed, in pixels.
        **options: of `Batching`. The share of the training split that becomes the validation part
            is in whole percents, and holds the same images for every seed.

    Raises:
        FileNotFoundError: the data are not there and cannot be downloaded.
        ValueError: an unknown data set, or a setting out of range.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 8 (data sets).
    """
    batching = Batching(**options)
    arguments.count("image_size", image_size, most=MOST_SIZE)
    arguments.choice("name", name, NAMES)
    # Seconds to import: only for those who need it.
    import tensorflow_datasets as tfds

    builder = tfds.builder(name)
    # The images stay compressed until they are shuffled; other features are not read.
    decoders = tfds.decode.PartialDecoding(
        {"image": True, "label": True}, decoders={"image": tfds.decode.SkipDecoding()}
    )
    percent = min(round(100 * batching.validation_share), 99)
    splits = {"train": f"train[{percent}%:]", "test": "test"}
    if percent:
        splits["validation"] = f"train[:{percent}%]"
    try:
        builder.download_and_prepare()
        read = builder.as_dataset(split=splits, decoders=decoders)
    except Exception as error:  # the network, a checksum, an archive, a package that is missing
        raise FileNotFoundError(
            f"The data set must be prepared, or be there to download. Received: '{name}' in "
            f"'{builder.data_path.parent.parent}': {type(error).__name__}: {error} Prepare it "
            f"where there is a network (`tfds build {name} --data_dir DIR`), copy DIR/{name} to "
            "this machine, and give its DIR in TFDS_DATA_DIR."
        ) from error

    def load(example: dict[str, Any]) -> tuple[tf.Tensor, tf.Tensor]:
        return decode(example["image"], image_size), example["label"]

    sources = {part: Source(examples, load) for part, examples in read.items()}
    return batched(
        sources["train"],
        sources["test"],
        sources.get("validation"),
        batching=batching,
        class_names=builder.info.features["label"].names,
        window=_SHUFFLED,
    )

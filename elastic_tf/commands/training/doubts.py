"""What a result does not show, although a table of it looks like any other."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from elastic_tf.data import ImageData

_FEW = 30  # images, with which the standard error of an accuracy of 50 % is 9 points
_LEARNED = 0.2  # above the accuracy on the test images: the training images were learned


def of_result(
    accuracy: float, data: ImageData, *, trained: float = 0.0, has_statistics: bool = True
) -> list[str]:
    """Sentences that a training should end with; none where there is nothing to say.

    The test images are read once more, for their labels.

    Args:
        accuracy: on the test images.
        data: what was trained on.
        trained: accuracy on the training images, while they were trained on.
        has_statistics: whether batch normalisation has any to run on, or uses those of the batch.
    """
    found = []
    counts = _counts(data.test)
    # in images, for the accuracy comes from Keras in single precision
    if round(accuracy * counts.sum()) <= counts.max():
        found.append(
            "It did not learn to tell the classes apart: always naming the most frequent one is "
            f"right for {counts.max() / counts.sum():.1%} of the test images, the model for "
            f"{accuracy:.1%}. {_advice(accuracy, trained, has_statistics=has_statistics)}"
        )
    if 0 < data.validation_count < _FEW:
        found.append(
            "The accuracy while it trained says little: the validation part has "
            f"{data.validation_count} images, fewer than {_FEW}, and each of them counts "
            f"{1 / data.validation_count:.1%}. A larger --validation, or more images, would help."
        )
    return found


def _advice(accuracy: float, trained: float, *, has_statistics: bool) -> str:
    """What to try where the test images are not told apart."""
    if trained > accuracy + _LEARNED:
        return (
            f"Its training images it knows, {trained:.1%}: they were learned by heart, or batch "
            "normalisation's stored statistics lag behind, as in a network of few steps. Train "
            "for more epochs, or from pre-trained --weights."
        )
    new = " Without weights batch normalisation needs --bn-training." if not has_statistics else ""
    return f"Try other learning rates, more epochs, or pre-trained --weights.{new}"


def _counts(images: tf.data.Dataset) -> np.ndarray:
    """Images of each class; labels are numbers, or shares of the classes."""
    labels = [np.asarray(y) for _, y in images]
    numbers = [y if y.ndim == 1 else y.argmax(axis=-1) for y in labels]
    return np.bincount(np.concatenate(numbers))

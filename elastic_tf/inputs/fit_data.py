"""The data that `fit` was given, as far as Keras knows them before they are read."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elastic_tf.arguments import brief
from elastic_tf.inputs import batches
from elastic_tf.inputs.samples import Samples


def batch_size(data: Any) -> int | None:
    """Samples in a batch of all replicas; None where it is not known before it is read.

    Args:
        data: the `stack.RunningFit` or the `Samples` of the `fit` that begins; None where the
            callbacks are called by a loop of one's own, of which nothing is known.

    Raises:
        ValueError: a dataset that yields single samples.
    """
    if isinstance(data, Samples):
        return data.batch_size
    if data is None or data.spec is None:
        return None
    if not data.is_dataset:
        return data.batch_size
    if not batches.is_batched(data.spec):
        raise ValueError(
            "`fit` must be given batches. Received: a dataset of single samples, "
            f"{brief(data.spec)}. Use dataset.batch(batch_size)."
        )
    parts = tf.nest.flatten(data.spec)
    shape = getattr(parts[0], "shape", None) if parts else None
    return shape[0] if shape is not None and shape.rank else None


def sample_shapes(data: Any) -> list[tuple[int | None, ...]] | None:
    """Shape of one sample of each input; None where it is not known before it is read.

    Args:
        data: as in `batch_size`, which has checked that they are batches.
    """
    if isinstance(data, Samples):
        return batches.sample_shapes(data.inputs(1))
    if data is None or data.spec is None:
        return None
    x, *_ = tf.keras.utils.unpack_x_y_sample_weight(data.spec)
    return batches.sample_shapes(x)

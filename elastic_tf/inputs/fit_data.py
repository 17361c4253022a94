"""The data that `fit` was given, as far as Keras's data handler knows before they are read."""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf

from elastic_tf.arguments import brief
from elastic_tf.inputs import batches
from elastic_tf.inputs.samples import Samples
from elastic_tf.stack import data_adapter

_FIT = inspect.unwrap(tf.keras.Model.fit).__code__


def of_running_fit(model: tf.keras.Model) -> Any:
    """The data handler of the `fit` of `model` that this is called in; None outside of one.

    Keras 2.15 keeps it in a local variable.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is _FIT and frame.f_locals["self"] is model:
            return frame.f_locals.get("data_handler")
        frame = frame.f_back
    return None


def batch_size(handler: Any) -> int | None:
    """Samples in a batch of all replicas; None where it is not known before it is read.

    Args:
        handler: of the `fit` that begins; None where the callbacks are called by a loop of one's
            own, of which nothing is known.

    Raises:
        ValueError: a dataset that yields single samples.
    """
    if isinstance(handler, Samples):
        return handler.batch_size
    adapter = getattr(handler, "_adapter", None)
    if adapter is None or isinstance(adapter, data_adapter.DatasetCreatorAdapter):
        return None  # Keras 2.15 does not know what a `DatasetCreator` will make
    if isinstance(adapter, data_adapter.DatasetAdapter):
        spec = adapter.get_dataset().element_spec
        if not batches.is_batched(spec):
            raise ValueError(
                "`fit` must be given batches. Received: a dataset of single samples, "
                f"{brief(spec)}. Use dataset.batch(batch_size)."
            )
        parts = tf.nest.flatten(spec)
        shape = getattr(parts[0], "shape", None) if parts else None
        return shape[0] if shape is not None and shape.rank else None
    if adapter.get_size() == 1 and adapter.has_partial_batch():
        return adapter.partial_batch_size()
    return adapter.batch_size()


def sample_shapes(handler: Any) -> list[tuple[int | None, ...]] | None:
    """Shape of one sample of each input; None where it is not known before it is read.

    Args:
        handler: as in `batch_size`, which has checked that its data are batches.
    """
    if isinstance(handler, Samples):
        return batches.sample_shapes(handler.inputs(1))
    adapter = getattr(handler, "_adapter", None)
    if adapter is None or isinstance(adapter, data_adapter.DatasetCreatorAdapter):
        return None
    x, *_ = tf.keras.utils.unpack_x_y_sample_weight(adapter.get_dataset().element_spec)
    return batches.sample_shapes(x)

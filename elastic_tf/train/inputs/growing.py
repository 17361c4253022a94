"""A dataset of single samples as tensors, with hardly more memory than the samples take."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.arguments import brief

_READ = 64  # samples at a time
_OF_SIZES = ("different shapes", "ConcatOp : Dimension")  # in what TensorFlow 2.15 says of them
_ALIGNED = 64  # bytes: TensorFlow takes an array over at such an address, and copies others
_SHARE = 16  # an array that is full grows by 1 / 16 of itself


def read(dataset: tf.data.Dataset) -> tuple[Any, Any, Any]:
    """Inputs, targets and weights of all samples of a dataset of single samples.

    Raises:
        ValueError: it is empty, does not end, or its samples have several sizes.
    """
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "The dataset must end. Received: one of infinite cardinality. Leave out repeat()."
        )
    try:
        grown = None
        for batch in dataset.batch(_READ):
            grown = grown or tf.nest.map_structure(Growing, batch)
            tf.nest.map_structure(Growing.add, grown, batch)
        if grown is None:
            raise ValueError("The dataset must hold a sample. Received: an empty one.")
        joined = tf.nest.map_structure(Growing.tensor, grown)
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        if not any(said in str(error) for said in _OF_SIZES):
            raise
        raise ValueError(
            "Samples must be of one size: what is computed of them once is kept in one array. "
            f"Received: sizes that differ, in {brief(dataset)}. Resize or pad them, or give "
            "batches of each size to `fit` of an et.ElasticModel."
        ) from error
    return tf.keras.utils.unpack_x_y_sample_weight(joined)


class Growing:
    """Batches of samples like the first, one after the other, in an array that becomes the tensor.

    Nothing is copied where the system makes an array longer by moving its pages, as Linux does.
    """

    def __init__(self, first: Any) -> None:
        self._shape, self._dtype = first.shape[1:], first.dtype
        # texts, and what is no array, have no bytes of their own
        has_bytes = isinstance(first, tf.Tensor) and first.dtype != tf.string
        self._others: list[Any] | None = None if has_bytes else []
        self._bytes = np.empty(0, np.uint8)
        self._start = self._used = self._count = 0

    def add(self, part: Any) -> None:
        """Append a batch."""
        if self._others is not None:
            self._others.append(part)
            return
        if part.shape[1:] != self._shape:
            raise ValueError(f"different shapes: {part.shape[1:]} and {self._shape}")
        new = np.ascontiguousarray(part.numpy()).reshape(-1).view(np.uint8)
        end = self._used + len(new)
        if end + _ALIGNED > len(self._bytes):
            self._resize(max(end, self._used + self._used // _SHARE))
        self._bytes[self._start + self._used : self._start + end] = new
        self._used, self._count = end, self._count + len(part)

    def tensor(self) -> Any:
        """All samples; the last call."""
        if self._others is not None:
            return tf.concat(self._others, 0)
        self._resize(self._used)
        found = self._bytes[self._start : self._start + self._used]
        found = found.view(self._dtype.as_numpy_dtype).reshape(self._count, *self._shape)
        return tf.raw_ops.Identity(input=found)  # tf.constant would copy it

    def _resize(self, size: int) -> None:
        before = self._start
        self._bytes.resize(size + _ALIGNED, refcheck=False)
        self._start = -self._bytes.ctypes.data % _ALIGNED
        if self._start != before:  # of a small array: a large one begins where a page does
            moved = self._bytes[before : before + self._used].copy()
            self._bytes[self._start : self._start + self._used] = moved

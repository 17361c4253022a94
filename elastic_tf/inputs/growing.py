"""The samples of a dataset as one tensor, with hardly more memory than they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

_ALIGNED = 64  # bytes: TensorFlow takes an array over at such an address, and copies others
_SHARE = 16  # an array that is full grows by 1 / 16 of itself


class Growing:
    """Batches of samples, one after the other, in an array that becomes the tensor.

    Nothing is copied where the system makes an array longer by moving its pages, as Linux does.

    Args:
        like: a batch.
    """

    def __init__(self, like: Any) -> None:
        self._shape, self._dtype = like.shape[1:], like.dtype
        # texts, and what is no array, have no bytes of their own
        self._others: list[Any] | None = None
        if not isinstance(like, tf.Tensor) or like.dtype == tf.string:
            self._others = []
        self._bytes = np.empty(0, np.uint8)
        self._start = self._used = self._count = 0

    def add(self, part: Any) -> None:
        """Append a batch.

        Raises:
            ValueError: its samples have a different shape.
        """
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

"""Images that are arrays, in memory or in a file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.app.data.handwriting import Labelled
from elastic_tf.app.data.pipelines import Batching, ImageData, from_rows
from elastic_tf.files import arrays as array_files

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_MOST_LABEL = 10**6


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
    names = [str(label) for label in range(count)]
    return from_rows((x, y), (x_test, y_test), batching=batching, class_names=names)


def arrays(path: str | os.PathLike[str]) -> tuple[Labelled, Labelled]:
    """(x_train, y_train), (x_test, y_test) of an .npz file with arrays of these names.

    Images are (count, height, width, channels) as they are in the file, a channel added where there
    is none; labels int64 (count,). A ValueError says which arrays are missing or do not fit.
    """
    path = arguments.file("path", path, "an .npz file")
    try:
        found = array_files.read(path, _ARRAYS)
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

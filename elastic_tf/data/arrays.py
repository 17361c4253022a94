"""Images that are arrays, in memory or in a file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.arguments import brief
from elastic_tf.data.handwriting import Labelled
from elastic_tf.data.pipelines import Batching, ImageData, batched, rows_of, split_off
from elastic_tf.files import arrays as array_files

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_MOST_LABEL = 10**6


def from_arrays(train: Labelled, test: Labelled, **options: Any) -> ImageData:
    """Batches of arrays as `arrays` and `digits` return them; the labels are the class names.

    Args:
        train: images (count, height, width, channels) and labels (count,).
        test: likewise.
        **options: of `Batching`: batch_size, seed, flip, augment, validation_share.

    Raises:
        ValueError: a setting out of range, arrays that do not fit together, or fewer training
            images than a batch.
    """
    batching = Batching(**options)
    parts = {}
    for name, pair in (("train", train), ("test", test)):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"`{name}` must be (images, labels). Received: {brief(pair)}.")
        for place, part in enumerate(pair):
            parts[f"{name}[{place}]"] = arguments.array(name, part)
    (x, y), (x_test, y_test) = _checked(parts)
    left, held_out = split_off(y, batching)
    rows = rows_of(x, y)
    return batched(
        rows(left),
        rows_of(x_test, y_test)(np.arange(len(y_test))),
        rows(held_out),
        batching=batching,
        class_names=[str(label) for label in range(max(y.max(), y_test.max()) + 1)],
        image_shape=x.shape[1:],
    )


def arrays(path: str | os.PathLike[str]) -> tuple[Labelled, Labelled]:
    """Images and labels of an .npz file with x_train, y_train, x_test, y_test.

    Returns:
        (x_train, y_train), (x_test, y_test): images (count, height, width, channels) as they are
        in the file, a channel added where there is none; labels int64 (count,).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no such arrays in it, or they do not fit together.
    """
    path = arguments.path("path", path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"`path` must be an .npz file. Received: '{path}', not a file.")
    try:
        found = array_files.read(path, _ARRAYS)
    except (OSError, ValueError) as error:
        raise ValueError(f"`path` must be an .npz file. Received: '{path}' {error}.") from error
    missing = [name for name in _ARRAYS if name not in found]
    if missing:
        raise ValueError(
            f"The file must hold {', '.join(_ARRAYS)}. Received: '{path}' without "
            f"{', '.join(missing)}; it holds {', '.join(found) or 'nothing'}."
        )
    for name, part in found.items():
        if name.startswith("x") and part.ndim == 3:
            found[name] = part[..., np.newaxis]
        elif part.shape[1:] == (1,):  # labels in one column
            found[name] = part.reshape(-1)
    return _checked(found, f" in '{path}'")


def _checked(parts: dict[str, np.ndarray], where: str = "") -> tuple[Labelled, Labelled]:
    """Images and int64 labels of both parts, if they fit together; `where` is for messages."""
    names, found = list(parts), list(parts.values())
    for k in (0, 2):
        x, y = found[k : k + 2]
        if x.ndim != 4 or not x.size or x.dtype.kind not in "uif":
            raise ValueError(
                f"`{names[k]}` must be images, numbers of shape (count, height, width, channels). "
                f"Received: {x.dtype} of shape {x.shape}{where}."
            )
        if not np.isfinite(x).all():
            raise ValueError(f"`{names[k]}` must be finite. Received: NaN or infinity{where}.")
        is_whole = y.dtype.kind in "ui" and y.shape == (len(x),)
        if not is_whole or int(y.min()) < 0 or y.max() > _MOST_LABEL:
            raise ValueError(
                f"`{names[k + 1]}` must be {len(x)} integers from 0 to {_MOST_LABEL}. Received: "
                f"{y.dtype} of shape {y.shape}{where}: {brief(y.tolist())}."
            )
    if found[0].shape[1:] != found[2].shape[1:]:
        raise ValueError(
            "The training and the test part must have images of one shape. Received: "
            f"{found[0].shape[1:]} and {found[2].shape[1:]}{where}."
        )
    return (found[0], found[1].astype(np.int64)), (found[2], found[3].astype(np.int64))

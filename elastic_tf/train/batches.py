"""A batch that a user gives: samples first, equally many in each part."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.arguments import brief


def as_batch(x: Any, y: Any, sample_weight: Any = None, *, as_fit: bool = False) -> tuple[Any, ...]:
    """One batch of tensors as `train_step` takes it, its parts nested as they are.

    With `as_fit` floating-point arrays get the type that `fit` would feed.

    Raises:
        ValueError: a part is no arrays with samples first, or they do not hold equally many.
    """
    parts = [("x", x), ("y", y)]
    if sample_weight is not None:
        parts.append(("sample_weight", sample_weight))
    for name, part in parts:
        if not tf.nest.flatten(part):
            raise ValueError(
                f"`{name}` must be arrays with samples first. Received: {name}={brief(part)}."
            )
    found = [
        tf.nest.map_structure(functools.partial(_tensor, name, as_fit), _as_array(part))
        for name, part in parts
    ]
    counts = {len(array) for array in tf.nest.flatten(found)}
    if len(counts) != 1 or 0 in counts:
        names = ", ".join(f"`{name}`" for name, _ in parts)
        each = (
            f"{' and '.join(str(len(one)) for one in tf.nest.flatten(part))} in {name}"
            for (name, _), part in zip(parts, found)
        )
        raise ValueError(
            f"At least one sample must be there, and equally many in all parts of {names}. "
            f"Received: {', '.join(each)}."
        )
    return tuple(found)


def first_batch(dataset: tf.data.Dataset) -> tuple[Any, ...]:
    """(x, y) or (x, y, sample_weight) of the first batch of a dataset."""
    batch = next(iter(dataset), None)
    if batch is None:
        raise ValueError("The dataset must hold a batch. Received: an empty one.")
    x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
    if y is None or not is_batched(batch):
        raise ValueError(
            "The dataset must yield batches of (x, y) or (x, y, sample_weight). Received: "
            f"{dataset.element_spec}. Use dataset.batch(batch_size) on one that yields (x, y)."
        )
    return (x, y) if weight is None else (x, y, weight)


def batch_of(data: Any) -> Any:
    """One batch as `train_step` takes it, of such a batch or of a dataset of them."""
    if isinstance(data, tf.data.Dataset):
        data = first_batch(data)
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise ValueError(
            "`data` must be (x, y), (x, y, sample_weight), or a dataset of such batches. Received: "
            f"data={brief(data)}."
        )
    return as_batch(*data)


def is_batched(element: Any) -> bool:
    """Whether targets have a first axis and all parts are equally long, as in a batch.

    Of an element of a dataset, or its specification; what is unknown is taken to fit.
    """
    x, y, _ = tf.keras.utils.unpack_x_y_sample_weight(element)
    of_x, of_y = ([getattr(a, "shape", None) for a in tf.nest.flatten(part)] for part in (x, y))
    ranked = [shape for shape in (*of_x, *of_y) if shape is not None and shape.rank]
    is_single = any(shape is not None and shape.rank == 0 for shape in of_y)
    return not is_single and len({shape[0] for shape in ranked} - {None}) <= 1


def sample_shapes(x: Any) -> list[tuple[int | None, ...]] | None:
    """Shape of one sample of each input of a batch, or of its specification.

    None where one does not state its number of axes.
    """
    shapes: list[Any] = [getattr(part, "shape", None) for part in tf.nest.flatten(x)]
    if any(shape is None or tf.TensorShape(shape).rank is None for shape in shapes):
        return None
    return [tuple(shape[1:]) for shape in shapes]


def _as_array(part: Any) -> Any:
    """Numbers in lists as the array that they stand for; other parts as they are."""
    is_numbers = isinstance(part, list) and (np.isscalar(part[0]) or isinstance(part[0], list))
    return arguments.array("x or y", part) if is_numbers else part


def _tensor(name: str, as_fit: bool, part: Any) -> tf.Tensor:
    if isinstance(part, tf.data.Dataset):
        raise ValueError(
            f"`{name}` must be arrays with samples first. Received: a dataset, {brief(part)}. Take "
            "one batch of it: x, y = next(iter(dataset))."
        )
    if isinstance(part, tf.RaggedTensor):
        raise ValueError(
            f"The samples of `{name}` must be of one size. Received: a RaggedTensor of shape "
            f"{part.shape}. Pad them with {name}.to_tensor()."
        )
    if tf.is_tensor(part) and part.shape.rank:
        return tf.convert_to_tensor(part)
    array = arguments.samples(name, part)
    cast = as_fit and np.issubdtype(array.dtype, np.floating)
    return tf.convert_to_tensor(array, tf.keras.backend.floatx() if cast else None)

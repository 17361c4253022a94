"""What a dense layer is given, for every sample: one forward pass of everything before it."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import stack
from elastic_tf.arguments import brief
from elastic_tf.engine.rows import RowTraining
from elastic_tf.inputs.batches import is_batched
from elastic_tf.inputs.samples import Samples

_BATCHES = (16, 64, 256)  # sizes of the first batches; the fastest goes on
_AUGMENTED = 64  # rows in a batch
_SOLVING = 0.3  # seconds of the closed form / of the features: 0.13 of MobileNet, 0.24 of V2


def dense_layers(model: tf.keras.Model) -> list[tf.keras.layers.Dense]:
    """All dense layers of a model, in the order in which it holds them."""
    return [one for one in stack.layers_of(model) if isinstance(one, tf.keras.layers.Dense)]


def dense_layer(model: tf.keras.Model, name: str | None) -> tf.keras.layers.Dense:
    """The dense layer of that name, or the model's last one."""
    found = dense_layers(stack.keras_model("model", model))
    named = [one for one in found if name in (None, one.name)]
    if not named:
        names = ", ".join(repr(one.name) for one in found) or "none"
        raise ValueError(
            f"`layer` must name a Dense layer of the model. Received: {name!r}; '{model.name}' has "
            f"{names}. A closed form exists for linear heads only."
        )
    if not named[-1].built:
        raise ValueError(
            f"The model must be built. Received: '{model.name}', whose layer '{named[-1].name}' "
            "has no weights yet. Call the model on a batch: model(x)."
        )
    return named[-1]


def before(model: tf.keras.Model, dense: tf.keras.layers.Dense) -> Callable[[Any], tf.Tensor]:
    """A function from a batch of inputs to what the dense layer is given; float32, (n, width)."""

    def read(inputs: Any) -> tf.Tensor:
        given: list[tf.Tensor] = []
        call, own = dense.call, vars(dense).get("call")

        def listening(values: tf.Tensor, **options: Any) -> tf.Tensor:
            given.append(values)
            return call(values, **options)

        vars(dense)["call"] = listening
        try:
            model(inputs, training=False)
        finally:
            del vars(dense)["call"]
            if own is not None:
                vars(dense)["call"] = own
        if len(given) != 1 or given[0].shape.rank != 2:
            shapes = [tuple(one.shape) for one in given]
            raise ValueError(
                "The head must be called once, on one vector per sample. Received: layer "
                f"'{dense.name}' called on {shapes}. Name another one as `layer`."
            )
        return tf.cast(given[0], tf.float32)

    return read


def reader(read: Callable[[Any], tf.Tensor]) -> Callable[[Any], np.ndarray]:
    """The function traced for batches of several sizes."""
    traced = tf.function(read, reduce_retracing=True)
    traced._omit_frequent_tracing_warning = True  # a trace for each of a few sizes is meant
    return lambda inputs: traced(inputs).numpy()


def of_dataset(dataset: tf.data.Dataset) -> Iterator[tuple[Any, Any, Any]]:
    """Inputs, targets and weights of the batches of a dataset."""
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY or not is_batched(
        dataset.element_spec
    ):
        raise ValueError(
            "`x` must be a dataset of batches (x, y) that ends. Received: "
            f"{dataset.element_spec}, cardinality {dataset.cardinality().numpy()}. Use "
            "dataset.batch(32), without repeat()."
        )
    for batch in dataset:
        yield tf.keras.utils.unpack_x_y_sample_weight(batch)


def of_arrays(whole: tuple[Any, ...]) -> Iterator[tuple[Any, Any, Any]]:
    """Arrays in batches: some sizes are tried on the first ones, the fastest goes on."""
    count, start = len(tf.nest.flatten(whole)[0]), 0
    speed: dict[int, float] = {}  # samples a second
    x, y, weight = (*whole, None)[:3]
    sizes = iter(_BATCHES)
    while start < count:
        size = next(sizes, None) or max(speed, key=lambda one: speed[one])
        part = slice(start, start + size)
        began = time.perf_counter()
        cut = tf.nest.map_structure(lambda array: array[part], (x, y))  # noqa: B023
        yield (*cut, None if weight is None else weight[part])
        # the first one traces
        speed[size] = 0.0 if not start else size / (time.perf_counter() - began)
        start += size


def of_samples(samples: Samples, until: float | None = None) -> Iterator[tuple[Any, Any, Any]]:
    """All rows in batches, view by view; or the samples that are read in time, one by one."""
    if until is not None:
        yield from _until(samples, until)
    elif samples.augment is None:
        yield from of_arrays(samples.arrays)
    else:
        for start in range(0, samples.rows, _AUGMENTED):
            rows = tf.range(start, min(start + _AUGMENTED, samples.rows), dtype=tf.int64)
            yield tf.keras.utils.unpack_x_y_sample_weight(samples.take(rows))


def _until(samples: Samples, until: float) -> Iterator[tuple[Any, Any, Any]]:
    """Samples in random order, as many as are read by then and solved for; a batch at least."""
    order = np.random.default_rng(samples.seed).permutation(samples.count)
    order = (order[:, None] + samples.count * np.arange(samples.views)).reshape(-1)
    size = max(_AUGMENTED // samples.views, 1) * samples.views
    began = first = time.perf_counter()
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield tf.keras.utils.unpack_x_y_sample_weight(samples.take(rows))
        now = time.perf_counter()
        first = first if start else now  # the first batch was traced
        next_one = (now - first) / max(start // size, 1)
        if (1.0 + _SOLVING) * (now + next_one - began) > until - began:
            break


def of_rows(
    read: Callable[[Any], tf.Tensor], rows: RowTraining, name: str
) -> Iterator[tuple[np.ndarray, Any, Any]]:
    """Features, targets and weights of all rows, from what is kept of them.

    Args:
        read: what gives features of a batch.
        rows: of the running `fit`.
        name: of the layer that `read` is of.

    Raises:
        NotCacheable: nothing is kept, or nothing that the features follow from.
    """
    start = 0
    for part in rows.onward(read, name):
        y, *weight = rows.samples.targets(np.arange(start, start + len(part)))
        yield part, y, weight[0] if weight else None
        start += len(part)


def collect(
    batches: Iterator[tuple[np.ndarray, Any, Any]], memory: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, targets and weights of all batches; features beyond `memory` in a file."""
    parts: list[np.ndarray] = []
    targets, weights, held, count = [], [], 0, 0
    with contextlib.ExitStack() as files:
        spilled = None
        for part, y, weight in batches:
            if not np.isfinite(part).all():
                raise ValueError(
                    f"Features must be finite. Received: {part.max()} among those of samples "
                    f"{count} to {count + len(part) - 1}. Check the images and the weights of the "
                    "model."
                )
            count += len(part)
            targets.append(np.asarray(y))
            weights.append(np.ones(len(part)) if weight is None else np.asarray(weight, np.float64))
            parts.append(part)
            held += part.nbytes
            if held > memory:
                spilled = spilled or files.enter_context(tempfile.TemporaryFile())
                np.concatenate(parts).tofile(spilled)
                parts, held = [], 0
        if not count:
            raise ValueError("`x` must hold samples. Received: a dataset without a batch.")
        if spilled is None:
            features = np.concatenate(parts)
        else:
            for part in parts:
                part.tofile(spilled)
            # it goes with the array, which holds it open
            features = np.memmap(spilled, np.float32, "r", shape=(count, part.shape[1]))
    weight = np.concatenate(weights)
    if weight.shape != (count,) or not (np.isfinite(weight).all() and (weight >= 0.0).all()):
        raise ValueError(
            "`sample_weight` must be finite and not negative, one per sample. Received: "
            f"{brief(weight)} for {count} samples."
        )
    if not weight.any():
        raise ValueError("`sample_weight` must be above 0 somewhere. Received: zeros only.")
    return features, np.concatenate(targets), weight

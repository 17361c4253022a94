"""What a dense layer is given, for every sample: one forward pass of everything before it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, stack
from elastic_tf.lite.disk import Rows
from elastic_tf.plan import layers_of
from elastic_tf.stack import attributes
from elastic_tf.train.batches import is_batched
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.prefix import NotCacheable, frozen_pass
from elastic_tf.train.samples import Samples

_BATCH = 64  # rows in a pass
_POSITIONS = 16  # of a map; 8, 16, 32, 64 of flowers: 79.2, 80.9, 81.8, 81.7 % on held-out images
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


def head_tensors(model: tf.keras.Model) -> np.ndarray:
    """True for the tensors of the layer that holds the last one; bool, shape (N,), forward order.

    The last tensor of the elastic model must be one of its output layer.
    """
    layers = layers_of(arguments.elastic(model))
    return np.array([layer is layers[-1] for layer in layers])


def _before(model: tf.keras.Model, dense: tf.keras.layers.Dense) -> Callable[[Any], list[Any]]:
    """From a batch of inputs to what the dense layer is given, float32, and outputs."""

    def read(inputs: Any) -> list[tf.Tensor]:
        given: list[tf.Tensor] = []
        call = dense.call

        def listening(values: tf.Tensor, **options: Any) -> tf.Tensor:
            given.append(values)
            return call(values, **options)

        with attributes(dense, call=listening):
            outputs = frozen_pass(model, inputs, training=False)
        if len(given) != 1:
            shapes = [tuple(one.shape) for one in given]
            raise ValueError(
                f"The head must be called once. Received: layer '{dense.name}' called on {shapes}. "
                "Name another one as `layer`."
            )
        return [tf.cast(given[0], tf.float32), *tf.nest.flatten(outputs)]

    return read


def predicted(model: tf.keras.Model, layer: str | None, samples: Samples) -> np.ndarray:
    """What a model of one output says of samples, from what a `fit` keeps of them, if it does.

    It is traced once with what gives the features of that dense layer.
    """
    found = _read(model, dense_layer(model, layer), samples, None)
    return np.concatenate([output for (_, output), *_ in found])


def collect(
    model: tf.keras.Model,
    dense: tf.keras.layers.Dense,
    data: Samples | tf.data.Dataset,
    memory: int,
    until: float | None = None,
) -> tuple[Any, np.ndarray, np.ndarray, int]:
    """Features, targets and weights of all samples; features beyond `memory` as `Rows` of a file.

    Of maps, as many positions of each sample as the last number says. In a `fit` on these samples
    the features follow from what is kept of them, where something is.
    """
    parts, spilled, rng = list[np.ndarray](), None, np.random.default_rng(0)
    targets, weights, held, count, each = [], [], 0, 0, 1
    for (part, *_), y, *given in _read(model, dense, data, until):
        if not np.isfinite(part).all():
            raise ValueError(
                f"Features must be finite. Received: {part.max()} among those of samples "
                f"{count} to {count + len(part) - 1}. Check the images and the weights of the "
                "model."
            )
        y, weight = np.asarray(y), np.asarray(given[0] if given else np.ones(len(part)), np.float64)
        if part.ndim > 2:
            each = min(math.prod(part.shape[1:-1]), _POSITIONS)
            part, y, weight = _at_positions(dense, part, y, weight, each, rng)
        targets.append(y)
        weights.append(weight)
        parts.append(part)
        count, held = count + len(part), held + part.nbytes
        if held > memory:
            spilled = spilled or Rows(None)
            spilled.append(np.concatenate(parts))
            parts, held = [], memory  # what follows goes there, too
    if not count:
        raise ValueError("`x` must hold samples. Received: a dataset without a batch.")
    weight = np.concatenate(weights)
    if weight.shape != (count,) or not (np.isfinite(weight).all() and (weight >= 0.0).all()):
        raise ValueError(
            "`sample_weight` must be finite and not negative, one per sample. Received: "
            f"{arguments.brief(weight)} for {count} samples."
        )
    if not weight.any():
        raise ValueError("`sample_weight` must be above 0 somewhere. Received: zeros only.")
    return spilled or np.concatenate(parts), np.concatenate(targets), weight, each


def _at_positions(
    dense: tf.keras.layers.Dense,
    part: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
    each: int,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Features (n * each, width), targets and weights, of so many positions of each map."""
    rows, axes = len(part), part.shape[1:-1]
    if y.shape[: part.ndim - 1] != part.shape[:-1]:
        raise ValueError(
            "The head must be called on one vector per sample, or have a target at each position. "
            f"Received: layer '{dense.name}' called on {part.shape[1:]}, targets of shape "
            f"{y.shape[1:]}. Name another one as `layer`."
        )
    chosen = rng.random((rows, math.prod(axes))).argsort(axis=1)[:, :each]

    def at(values: np.ndarray) -> np.ndarray:
        flat = values.reshape(rows, -1, *values.shape[part.ndim - 1 :])
        return flat[np.arange(rows)[:, None], chosen].reshape(-1, *flat.shape[2:])

    is_whole = weight.shape == part.shape[:-1]
    return [at(part), at(y), at(weight) if is_whole else np.repeat(weight, each, axis=0)]


def _read(
    model: Any, dense: tf.keras.layers.Dense, data: Any, until: float | None
) -> Iterator[tuple[Any, ...]]:
    """([features, outputs], y) or ([features, outputs], y, sample_weight) of each batch."""
    read = _before(model, dense)
    rows = model._elastic.rows if isinstance(model, ElasticMixin) else None
    if rows is not None and isinstance(data, Samples):
        with contextlib.suppress(NotCacheable):  # which is said before the first part
            start = 0
            for parts in rows.onward(read, dense.name, data):
                end = start + len(parts[0])
                yield parts, *data.targets(np.arange(start, end))
                start = end
            return
    traced = rows.whole(read, dense.name) if rows else tf.function(read, reduce_retracing=True)
    traced._omit_frequent_tracing_warning = True  # a trace for each of a few sizes is meant
    batches = _of_samples(data, until) if isinstance(data, Samples) else _of_dataset(data)
    for x, *rest in batches:
        yield [part.numpy() for part in traced(x)], *rest


def _of_dataset(dataset: tf.data.Dataset) -> Iterator[tuple[Any, ...]]:
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY or not is_batched(
        dataset.element_spec
    ):
        raise ValueError(
            "`x` must be a dataset of batches (x, y) that ends. Received: "
            f"{dataset.element_spec}, cardinality {dataset.cardinality().numpy()}. Use "
            "dataset.batch(32), without repeat()."
        )
    for batch in dataset:
        x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        yield (x, y) if weight is None else (x, y, weight)


def _of_samples(samples: Samples, until: float | None) -> Iterator[tuple[Any, ...]]:
    """All rows, view by view; by `until` whole samples at random, as many as are solved by then."""
    order, size = np.arange(samples.rows), _BATCH
    if until is not None:
        mixed = np.random.default_rng(samples.seed).permutation(samples.count)
        order = (mixed[:, None] + samples.count * np.arange(samples.views)).reshape(-1)
        size = max(_BATCH // samples.views, 1) * samples.views
    began = first = time.perf_counter()
    for start in range(0, len(order), size):
        yield samples.take(order[start : start + size])
        now = time.perf_counter()
        first = first if start else now  # the first batch was traced
        next_one = (now - first) / max(start // size, 1)
        if until is not None and (1.0 + _SOLVING) * (now + next_one - began) > until - began:
            break

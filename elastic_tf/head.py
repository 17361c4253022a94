"""A new head in closed form: ridge regression on the features of a frozen network.

A linear head on features that stay as they are is a least-squares problem: one forward pass, one
eigendecomposition. The penalty comes from the exact leave-one-out error, the scale of the logits
from the leave-one-out likelihood, so that nothing is held out or tuned.

Source: Golub, Heath, Wahba, Generalized cross-validation as a method for choosing a good ridge
parameter, Technometrics 1979 (leave-one-out residuals of ridge regression).
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from elastic_tf.arguments import brief
from elastic_tf.inputs.batches import as_batch, is_batched

_ROWS = 4096  # samples in a block of float64 arithmetic
_BATCHES = (16, 64, 256)  # sizes of the first batches; the fastest goes on
# Penalties to look at, by the largest eigenvalue; beyond, nothing or everything is shrunk.
_LEAST, _MOST = 1e-9, 1e2
# Losses of independent yes and no, and of one class out of many.
_ONE_BY_ONE = (tf.keras.losses.BinaryCrossentropy, tf.keras.losses.binary_crossentropy)
_ONE_OF_MANY = (
    tf.keras.losses.CategoricalCrossentropy,
    tf.keras.losses.SparseCategoricalCrossentropy,
    tf.keras.losses.categorical_crossentropy,
    tf.keras.losses.sparse_categorical_crossentropy,
)


@dataclasses.dataclass(frozen=True)
class HeadSolution:
    """What `solve_head` found.

    Attributes:
        layer: name of the layer whose weights were set.
        penalty: of the sum of squared weights, beside the weighted sum of squared errors.
        scale: logits / regression values; 1 for regression.
        accuracy: weighted share of samples that the solution without them classifies correctly;
            None for regression.
        error: weighted mean squared leave-one-out error, of one-hot targets for classes.
        samples: number of samples.
        seconds: wall-clock, forward pass included.
    """

    layer: str
    penalty: float
    scale: float
    accuracy: float | None
    error: float
    samples: int
    seconds: float


def solve_head(
    model: tf.keras.Model,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    layer: str | None = None,
    memory: int = 1 << 30,
) -> HeadSolution:
    """Set the weights of a dense layer to the best linear head, in closed form.

    Everything before the layer runs once, in inference mode, and stays as it is. A layer whose
    activation or whose compiled loss is that of classes gets logits: ridge regression on their
    indicators, scaled by likelihood. Any other is regression, of one or more outputs.

    Args:
        model: any Keras model that was called or built before.
        x: inputs with samples first, or a finite `tf.data.Dataset` of batches (x, y) or
            (x, y, sample_weight).
        y: class numbers, rows of zeros and ones, or real values; None with a dataset.
        sample_weight: one per sample, not negative.
        layer: name of the dense layer; None takes the model's last one.
        memory: bytes that the features may take; beyond, they are kept in a temporary file.

    Returns:
        Penalty, scale and leave-one-out accuracy.

    Raises:
        ValueError: there is no such layer, or data do not fit it; the model is as it was.
    """
    started = time.perf_counter()
    dense = _dense(model, layer)
    if isinstance(x, tf.data.Dataset):
        batches = _of_dataset(x)
    else:
        batches = _of_arrays(as_batch(x, y, sample_weight))
    with contextlib.ExitStack() as files:
        features, targets, weight = _collect(_reader(model, dense), batches, memory, files)
        kind = _kind(model, dense, targets)
        wanted = _wanted(targets, dense.units, kind)
        ridge = _Ridge(features, wanted, weight, _storage(memory, files))
        penalty = ridge.best_penalty()
        kernel, bias = ridge.weights(penalty)
        left_out = ridge.left_out(penalty)
    scale = 1.0 if kind == "linear" else _best_scale(left_out, wanted, weight, kind)
    errors = ((left_out - wanted) ** 2).mean(axis=1)
    values = [scale * kernel, scale * bias] if dense.use_bias else [scale * kernel]
    dense.set_weights([value.astype(np.float32) for value in values])
    return HeadSolution(
        layer=dense.name,
        penalty=penalty,
        scale=scale,
        accuracy=_accuracy(left_out, wanted, weight, kind),
        error=float(np.average(errors, weights=weight)),
        samples=len(wanted),
        seconds=time.perf_counter() - started,
    )


class _Ridge:
    """Weighted ridge regression with a free intercept, ready for every penalty.

    With X the centred features, each row times the root of its weight, and X X^T = U diag(v) U^T,
    a penalty p predicts U diag(v / (v + p)) U^T of the centred targets, and its diagonal gives the
    leave-one-out residuals.
    """

    def __init__(
        self,
        features: np.ndarray,
        wanted: np.ndarray,
        weight: np.ndarray,
        storage: Callable[[tuple[int, ...], Any], np.ndarray],
    ) -> None:
        self.features, self.wanted, self.weight = features, wanted, weight
        self.share = weight / weight.sum()
        self.root = np.sqrt(weight)[:, None]
        self.mean = sum(self.share[rows] @ features[rows] for rows in self._blocks())
        self.mean_wanted = self.share @ wanted
        count, width = features.shape
        least = max(count, width) * np.finfo(np.float32).eps
        if count <= width:
            rows = self._rows(slice(None))
            values, vectors = np.linalg.eigh(rows @ rows.T)
            self.values = values[values > least * values[-1]]
            self.vectors = vectors[:, values > least * values[-1]]
        else:
            gram = np.zeros((width, width))
            for block in self._blocks():
                gram += self._rows(block).T @ self._rows(block)
            values, basis = np.linalg.eigh(gram)
            basis = basis[:, values > least * values[-1]]
            self.values = values[values > least * values[-1]]
            self.vectors = storage((count, len(self.values)), np.float64)
            for block in self._blocks():
                self.vectors[block] = self._rows(block) @ basis / np.sqrt(self.values)
        self.along = sum(
            self.vectors[rows].T @ (self.root[rows] * (wanted[rows] - self.mean_wanted))
            for rows in self._blocks()
        )

    def best_penalty(self) -> float:
        """The penalty of the least leave-one-out error."""
        if not len(self.values):
            return 1.0  # constant features: any penalty gives the mean

        def error(exponent: float) -> float:
            errors = (self.left_out(10.0**exponent) - self.wanted) ** 2
            return float(self.share @ errors.sum(axis=1))

        low, high = np.log10(_LEAST * self.values[-1]), np.log10(_MOST * self.values[-1])
        grid = np.linspace(low, high, 12)
        best = int(np.argmin([error(exponent) for exponent in grid]))
        bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
        found = minimize_scalar(error, bounds=bounds, method="bounded", options={"xatol": 0.05})
        return float(10.0**found.x)

    def left_out(self, penalty: float) -> np.ndarray:
        """(n, outputs) what the solution without a sample says of it."""
        shrink = self.values / (self.values + penalty)
        said = np.empty_like(self.wanted)
        for rows in self._blocks():
            vectors = self.vectors[rows]
            residual = self.root[rows] * (self.wanted[rows] - self.mean_wanted)
            residual -= vectors @ (shrink[:, None] * self.along)
            free = 1.0 - self.share[rows] - vectors**2 @ shrink
            # a sample that alone decides its own value tells nothing: as if it were not there
            free = np.where(free > np.sqrt(np.finfo(np.float64).eps), free, np.inf)
            root = np.where(self.root[rows] > 0.0, self.root[rows], np.inf)
            said[rows] = self.wanted[rows] - residual / free[:, None] / root
            alone = np.isinf(free)
            said[rows][alone] = self.mean_wanted
        return said

    def weights(self, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        """Kernel (width, outputs) and bias (outputs,)."""
        pull = self.along / (self.values + penalty)[:, None]
        kernel = sum(self._rows(rows).T @ (self.vectors[rows] @ pull) for rows in self._blocks())
        return kernel, self.mean_wanted - self.mean @ kernel

    def _rows(self, rows: slice) -> np.ndarray:
        return self.root[rows] * (self.features[rows] - self.mean)

    def _blocks(self) -> Iterator[slice]:
        for start in range(0, len(self.weight), _ROWS):
            yield slice(start, min(start + _ROWS, len(self.weight)))


def _dense(model: tf.keras.Model, name: str | None) -> tf.keras.layers.Dense:
    """The dense layer of that name, or the model's last one."""
    found = [one for one in model._flatten_layers() if isinstance(one, tf.keras.layers.Dense)]
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


def _reader(model: tf.keras.Model, dense: tf.keras.layers.Dense) -> Callable[[Any], np.ndarray]:
    """A function from a batch of inputs to what the dense layer is given; float32, (n, width)."""

    @tf.function(reduce_retracing=True)
    def read(inputs: Any) -> tf.Tensor:
        given: list[tf.Tensor] = []
        call = dense.call

        def listening(values: tf.Tensor) -> tf.Tensor:
            given.append(values)
            return call(values)

        dense.call = listening
        try:
            model(inputs, training=False)
        finally:
            dense.call = call
        if len(given) != 1 or given[0].shape.rank != 2:
            shapes = [tuple(one.shape) for one in given]
            raise ValueError(
                "The head must be called once, on one vector per sample. Received: layer "
                f"'{dense.name}' called on {shapes}. Name another one as `layer`."
            )
        return tf.cast(given[0], tf.float32)

    read._omit_frequent_tracing_warning = True  # a trace for each of a few sizes is meant
    return lambda inputs: read(inputs).numpy()


def _of_dataset(dataset: tf.data.Dataset) -> Iterator[tuple[Any, Any, Any]]:
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


def _of_arrays(whole: tuple[Any, ...]) -> Iterator[tuple[Any, Any, Any]]:
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


def _collect(
    read: Callable[[Any], np.ndarray],
    batches: Iterator[tuple[Any, Any, Any]],
    memory: int,
    files: contextlib.ExitStack,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, targets and weights of all batches; features beyond `memory` in a file."""
    parts: list[np.ndarray] = []
    targets, weights, held, spilled, count = [], [], 0, None, 0
    for x, y, weight in batches:
        part = read(x)
        if not np.isfinite(part).all():
            raise ValueError(
                f"Features must be finite. Received: {part.max()} among those of samples {count} "
                f"to {count + len(part) - 1}. Check the images and the weights of the model."
            )
        count += len(part)
        targets.append(np.asarray(y))
        weights.append(np.ones(len(part)) if weight is None else np.asarray(weight, np.float64))
        parts.append(part)
        held += part.nbytes
        if held > memory:
            spilled = spilled or files.enter_context(tempfile.TemporaryFile())
            for one in parts:
                one.tofile(spilled)
            parts, held = [], 0
    if not count:
        raise ValueError("`x` must hold samples. Received: a dataset without a batch.")
    if spilled is not None:
        for one in parts:
            one.tofile(spilled)
        features: np.ndarray = np.memmap(spilled, np.float32, "r", shape=(count, part.shape[1]))
    else:
        features = np.concatenate(parts)
    weight = np.concatenate(weights)
    if weight.shape != (count,) or not (np.isfinite(weight).all() and (weight >= 0.0).all()):
        raise ValueError(
            "`sample_weight` must be finite and not negative, one per sample. Received: "
            f"{brief(weight)} for {count} samples."
        )
    if not weight.any():
        raise ValueError("`sample_weight` must be above 0 somewhere. Received: zeros only.")
    return features, np.concatenate(targets), weight


def _storage(
    memory: int, files: contextlib.ExitStack
) -> Callable[[tuple[int, ...], Any], np.ndarray]:
    """Makes arrays: in memory, or in a temporary file where they take more than `memory`."""

    def make(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        if np.prod(shape) * np.dtype(dtype).itemsize <= memory:
            return np.empty(shape, dtype)
        return np.memmap(files.enter_context(tempfile.TemporaryFile()), dtype, "w+", shape=shape)

    return make


def _kind(model: tf.keras.Model, dense: tf.keras.layers.Dense, targets: np.ndarray) -> str:
    """What the layer's outputs stand for: "softmax", "sigmoid" or "linear"."""
    loss, keras = getattr(model, "loss", None), tf.keras
    if isinstance(loss, (str, keras.losses.Loss)) or callable(loss):
        loss = keras.losses.get(loss)
    else:
        loss = None  # one for each of several outputs: what it says is not for this layer alone
    ends_in_sigmoid = dense.activation is keras.activations.sigmoid
    if ends_in_sigmoid or loss in _ONE_BY_ONE or isinstance(loss, _ONE_BY_ONE[0]):
        return "sigmoid"
    ends_in_softmax = dense.activation is keras.activations.softmax
    if ends_in_softmax or loss in _ONE_OF_MANY or isinstance(loss, _ONE_OF_MANY[:2]):
        return "softmax"
    if dense.activation is not keras.activations.linear:
        raise ValueError(
            "The head must be linear, softmax or sigmoid. Received: layer "
            f"'{dense.name}' with the activation {brief(dense.activation)}. Name another one as "
            "`layer`."
        )
    numbers = targets.ndim == 1 or targets.shape[1:] == (1,)
    whole = targets.dtype.kind in "iub" and numbers and dense.units > 1
    return "softmax" if whole else "linear"


def _wanted(targets: np.ndarray, units: int, kind: str) -> np.ndarray:
    """(n, units) float64 what the ridge regression is to predict."""
    flat = targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
    if kind == "softmax" and flat.ndim == 1:
        if not (np.equal(np.mod(flat, 1), 0).all() and 0 <= flat.min() and flat.max() < units):
            raise ValueError(
                f"`y` must be classes from 0 to {units - 1}, as many as the head has units. "
                f"Received: values from {flat.min()} to {flat.max()}."
            )
        return np.eye(units)[flat.astype(np.int64)]
    rows = (flat[:, None] if flat.ndim == 1 else flat).astype(np.float64)
    if rows.shape[1:] != (units,) or not np.isfinite(rows).all():
        raise ValueError(
            f"`y` must hold {units} finite values per sample, one for each unit of the head. "
            f"Received: {brief(targets)} of shape {targets.shape}."
        )
    return 2.0 * rows - 1.0 if kind == "sigmoid" else rows


def _loss(logits: np.ndarray, wanted: np.ndarray, kind: str) -> np.ndarray:
    """(n,) crossentropy of each sample."""
    if kind == "softmax":
        return -(wanted * log_softmax(logits, axis=1)).sum(axis=1)
    return np.logaddexp(0.0, -wanted * logits).mean(axis=1)


def _best_scale(left_out: np.ndarray, wanted: np.ndarray, weight: np.ndarray, kind: str) -> float:
    """The factor to logits that makes what was left out most likely."""

    def loss(exponent: float) -> float:
        return float(np.average(_loss(np.exp(exponent) * left_out, wanted, kind), weights=weight))

    found = minimize_scalar(loss, bounds=(-3.0, 6.0), method="bounded")
    return float(np.exp(found.x))


def _accuracy(
    left_out: np.ndarray, wanted: np.ndarray, weight: np.ndarray, kind: str
) -> float | None:
    if kind == "linear":
        return None
    if kind == "sigmoid":
        right = ((left_out > 0.0) == (wanted > 0.0)).mean(axis=1)
    else:
        right = left_out.argmax(axis=1) == wanted.argmax(axis=1)
    return float(np.average(right, weights=weight))

"""Samples with numbers, so that what never changes for a sample is computed once."""

from __future__ import annotations

import copy
import functools
import weakref
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.files import quarter_of_memory
from elastic_tf.train import batches

READ = 64  # samples at a time
_CHECKED = 1 << 20  # numbers
_OF_SIZES = ("different shapes", "ConcatOp : Dimension")  # in what TensorFlow 2.15 says of them
# Bytes before the samples: TensorFlow takes an array over at a multiple of 64, and copies others.
# The C library of Linux puts large memory 16 behind one.
_BEFORE = 48


class Rows(NamedTuple):
    """A batch that says which rows of the samples it is made of; int64, shape (batch,)."""

    numbers: tf.Tensor


class Samples:
    """Training data in memory, in which every sample has a number: `model.fit(samples)`.

    What lies before the first trained tensor is then computed once for each sample.

    A row is a sample in one of its views. Without augmentation there is one; with it there are
    `views`, drawn once and then fixed: epoch e trains on view e mod `views`. Rows are put together
    in batches of one size; those left over are drawn in another epoch, for each has its own order.

    Args:
        x: inputs with samples first, nested as the model takes them; or a finite `tf.data.Dataset`
            of single samples (x, y) or (x, y, sample_weight), which is read into memory.
        y: targets with samples first; None with a dataset.
        sample_weight: one per sample, if the samples are weighted.
        batch_size: rows in a step; where there are fewer samples, all of them.
        shuffle: whether each epoch has an order of its own, drawn from `seed`.
        seed: of the orders and views.
        augment: function (x of one sample, seed of shape (2,)) -> x, of stateless random ops; where
            targets are maps, one that leaves pixels in their places.
        views: augmented versions of each sample.
        memory: bytes of memory for what is computed once of all rows (see
            `ElasticMixin.cache_prefix`); beyond, it is kept in a temporary file. 0 computes
            everything in every step. None: 1 GiB, at most a quarter of the machine's memory.
        cache_batch: rows in a pass that computes what is kept. Some kernels (Eigen's convolutions
            and matrix products) round otherwise in batches of another size, in the last bit;
            `cache_batch=batch_size` gives the bits of training in batches, but where a matrix
            product depends on the place in the batch too, as attention's do.

    Attributes:
        arrays: all samples as they were given, (x, y) or (x, y, sample_weight).
        count: number of samples.
        rows: number of rows, count * views.
        steps: steps in an epoch.
        epoch: passes begun.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
        batch_size: int = 32,
        shuffle: bool = True,
        seed: int = 0,
        augment: Callable[[Any, tf.Tensor], Any] | None = None,
        views: int = 1,
        memory: int | None = None,
        cache_batch: int = 16,
    ) -> None:
        with tf.device("CPU:0"):  # the whole data may not fit beside the model
            if isinstance(x, tf.data.Dataset):
                x, y, sample_weight = read(x.batch(READ))
            parts = batches.as_batch(x, y, sample_weight)
            self.arrays = tf.nest.map_structure(tf.identity, parts)
        self.count = int(tf.nest.flatten(parts)[0].shape[0])
        self.batch_size = min(arguments.count("batch_size", batch_size), self.count)
        self.shuffle = shuffle
        self.seed = arguments.count("seed", seed, least=0)
        self.views = arguments.count("views", views)
        if augment is None and self.views > 1:
            raise ValueError(
                f"`views` above 1 are of augmented samples. Received: views={views} without "
                "`augment`. Give a function (x, seed) -> x."
            )
        if augment is not None and not callable(augment):
            raise ValueError(
                f"`augment` must be a function (x, seed) -> x. Received: {augment!r}. By name: "
                "et.data.augmentation."
            )
        self.augment = augment
        if memory is None:
            memory = min(1 << 30, quarter_of_memory())
        self.memory = arguments.count("memory", memory, least=0, most=2**63)
        self.cache_batch = arguments.count("cache_batch", cache_batch)
        self.rows = self.count * self.views
        self.steps = self.count // self.batch_size
        self.epoch = 0

    def weighted(self, class_weight: Mapping[int, float]) -> Samples:
        """The same samples with the weights that `fit` of Keras gives them by their class.

        Inputs and targets are shared; weights of samples are multiplied by those of classes, which
        are numbered from 0 without gaps.
        """
        arguments.instance("class_weight", class_weight, Mapping, "a dict of weights by class")
        made = copy.copy(self)
        x, y, weight = (*self.arrays, None)[:3]
        with tf.device("CPU:0"):  # where classes without a weight are found
            made.arrays = x, y, _class_weighted(y, weight, class_weight)
        return made

    @functools.cached_property
    def checksum(self) -> int:
        """Of inputs and targets, a million numbers of each: whether they are the same."""
        found = 0
        for part in tf.nest.flatten(self.arrays[:2]):
            rows = max(1, _CHECKED // max(1, part.shape[1:].num_elements()))
            found = zlib.crc32(tf.io.serialize_tensor(part[:rows]).numpy(), found)
        return found

    @functools.cached_property
    def not_finite(self) -> str:
        """Which samples have inputs that are not finite, in words; empty where none has."""
        for part in tf.nest.flatten(self.arrays[0]):
            if part.dtype.is_floating and not tf.reduce_all(tf.math.is_finite(part)):
                rows = tf.reshape(tf.math.is_finite(part), (self.count, -1))
                bad = np.flatnonzero(~tf.reduce_all(rows, axis=1))
                which = f"{len(bad)} of {self.count} samples, the first of them x[{bad[0]}]"
                return f"NaN or infinite numbers in {which}"
        return ""

    def of_views(self, views: int) -> Samples:
        """The same samples in the first so many of their views."""
        made = copy.copy(self)
        made.views, made.rows = views, views * self.count
        return made

    def typed(self, other: Samples) -> Samples:
        """The same samples, inputs in the types of another's where that changes no value."""

        def cast(part: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
            if part.dtype == like.dtype or tf.string in (part.dtype, like.dtype):
                return part
            with tf.device("CPU:0"):
                found = tf.cast(part, like.dtype)
                # Keras computes in one floating type, whatever it is given
                is_exact = part.dtype.is_floating and like.dtype.is_floating
                is_exact = is_exact or bool(tf.reduce_all(tf.cast(found, part.dtype) == part))
            return found if is_exact else part

        made = copy.copy(self)
        x, *rest = self.arrays
        made.arrays = (tf.nest.map_structure(cast, x, other.arrays[0]), *rest)
        return made

    def row_batches(self) -> tf.data.Dataset:
        """Numbers of the rows of each step; every pass over the dataset is another epoch.

        The first pass is epoch 0 again: the same `fit` draws the same orders.
        """
        self.epoch = 0
        # TensorFlow never lets go of what it calls
        order, shape = weakref.WeakMethod(self._order), (self.steps, self.batch_size)

        def of_epoch(_: tf.Tensor) -> tf.Tensor:
            rows = tf.numpy_function(lambda: order()(), [], tf.int64)  # type: ignore[misc]
            return tf.ensure_shape(rows, shape)

        # by `from_generator` TensorFlow would have the memory of each step given back to the system
        dataset = tf.data.Dataset.range(1).map(of_epoch).unbatch()
        options = tf.data.Options()
        options.autotune.enabled = False  # TensorFlow 2.15 may wait for its thread at each end
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(self.steps))
        dataset = dataset.map(Rows).with_options(options)
        dataset._samples = self  # live as long as it
        return dataset

    def take(self, rows: tf.Tensor) -> tuple[Any, ...]:
        """The batch (x, y) or (x, y, sample_weight) of these rows, as tensors."""
        x, *rest = self._gathered(rows, self.arrays)
        augment = self.augment
        if augment is not None:
            seeds = tf.stack([tf.fill(tf.shape(rows), tf.cast(self.seed, tf.int64)), rows], axis=1)
            specs = tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape[1:], one.dtype), x)
            try:
                x = tf.map_fn(lambda pair: augment(*pair), (x, seeds), fn_output_signature=specs)
            except (TypeError, ValueError) as error:
                raise ValueError(
                    "`augment` must be a function (x, seed) -> x of one sample, which keeps its "
                    f"shape and type. Received: {arguments.brief(augment)}: {error}"
                ) from error
            tf.nest.map_structure(lambda part: part.set_shape((rows.shape[0], *part.shape[1:])), x)
        return (x, *rest)

    def targets(self, rows: tf.Tensor) -> tuple[Any, ...]:
        """The batch of these rows without its inputs: (y,) or (y, sample_weight)."""
        return tuple(self._gathered(rows, self.arrays[1:]))

    def inputs(self, size: int) -> Any:
        """Zeros in the place of the inputs of `size` rows."""
        return tf.nest.map_structure(
            lambda part: tf.zeros((size, *part.shape[1:]), part.dtype), self.arrays[0]
        )

    def _gathered(self, rows: tf.Tensor, parts: Any) -> Any:
        with tf.device("CPU:0"):
            samples = rows % self.count
            return tf.nest.map_structure(lambda part: tf.gather(part, samples), parts)

    def _order(self) -> np.ndarray:
        """Rows of all steps of the next epoch: Python is called once for them."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        order = np.arange(self.count)
        if self.shuffle:
            order = np.random.default_rng((self.seed, epoch)).permutation(self.count)
        order = order[: self.steps * self.batch_size] + self.count * (epoch % self.views)
        return order.reshape(self.steps, self.batch_size)


def read(dataset: tf.data.Dataset) -> tuple[Any, Any, Any]:
    """Inputs, targets and weights of a dataset of batches, in hardly more memory."""
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "The dataset must end. Received: one of infinite cardinality. Leave out repeat()."
        )
    try:
        grown, most = None, 2 * quarter_of_memory()
        for batch in dataset:
            grown = grown or tf.nest.map_structure(Growing, batch)
            tf.nest.map_structure(Growing.add, grown, batch)
            if sum(part.size for part in tf.nest.flatten(grown)) > most:
                raise ValueError(
                    "The dataset must end, and fit into half of the memory. Received: "
                    f"{most / 2**30:.1f} GiB, and more to come. Use take(), or give batches to "
                    "`fit` of an et.ElasticModel."
                )
        if grown is None:
            raise ValueError("The dataset must hold a sample. Received: an empty one.")
        with tf.device("CPU:0"):  # the whole data may not fit beside the model
            joined = tf.nest.map_structure(Growing.tensor, grown)
    except (tf.errors.InvalidArgumentError, ValueError) as error:
        if not any(said in str(error) for said in _OF_SIZES):
            raise
        raise ValueError(
            "Samples must be of one size: what is computed of them once is kept in one array. "
            f"Received: sizes that differ, in {arguments.brief(dataset)}. Resize or pad them, or "
            "give batches of each size to `fit` of an et.ElasticModel."
        ) from error
    return tf.keras.utils.unpack_x_y_sample_weight(joined)


class Growing:
    """Batches of samples like the first, one after the other, in bytes that become the tensor.

    Nothing is copied where the system makes them longer by moving their pages, as Linux does.
    """

    def __init__(self, first: Any) -> None:
        self._shape, self._dtype = first.shape[1:], first.dtype
        # texts, and what is no array, have no bytes of their own
        has_bytes = isinstance(first, tf.Tensor) and first.dtype != tf.string
        self._others: list[Any] | None = None if has_bytes else []
        self._bytes, self._count, self.size = bytearray(_BEFORE), 0, 0

    def add(self, part: Any) -> None:
        """Append a batch."""
        if self._others is not None:
            self._others.append(part)
            return
        if part.shape[1:] != self._shape:
            raise ValueError(f"different shapes: {part.shape[1:]} and {self._shape}")
        self._bytes += part.numpy().tobytes()
        self._count += len(part)
        self.size = len(self._bytes)

    def tensor(self) -> Any:
        """All samples; the last call."""
        if self._others is not None:
            return tf.concat(self._others, 0)
        found = np.frombuffer(self._bytes, self._dtype.as_numpy_dtype, offset=_BEFORE)
        found = found.reshape(self._count, *self._shape)
        return tf.raw_ops.Identity(input=found)  # tf.constant would copy it


def _class_weighted(y: Any, weight: Any, class_weight: Mapping[int, float]) -> tf.Tensor:
    """Weights of samples, times those of their classes."""
    rule = "`class_weight` must have a weight for each class of one output, numbered from 0."
    given = arguments.brief(class_weight)
    if tf.nest.is_nested(y) or sorted(class_weight) != [*range(len(class_weight))]:
        raise ValueError(f"{rule} Received: {given} for {arguments.brief(y)}.")
    if y.shape.rank > 1 and y.shape[-1] > 1:
        classes = tf.argmax(y, axis=-1)
    else:
        classes = tf.cast(tf.round(tf.squeeze(y, -1) if y.shape.rank > 1 else y), tf.int64)
    try:
        found = tf.gather([float(class_weight[k]) for k in sorted(class_weight)], classes)
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(
            f"{rule} Received: {given} for classes up to {int(tf.reduce_max(classes))}."
        ) from error
    if weight is None:
        return found
    missing = [1] * (found.shape.rank - weight.shape.rank)
    return tf.reshape(weight, [*weight.shape, *missing]) * tf.cast(found, weight.dtype)


def known_of(data: Any) -> tuple[int | None, list[tuple[int | None, ...]] | None]:
    """Samples in a batch, and the shape of one sample of each input.

    Of `Samples`, or of the `stack.RunningFit` of a `fit` before its data are read; None for what is
    not known, as in a loop of one's own, where `data` is None. A dataset of single samples is
    refused.
    """
    if isinstance(data, Samples):
        return data.batch_size, batches.sample_shapes(data.inputs(1))
    if data is None or data.spec is None:
        return None, None
    shapes = batches.sample_shapes(tf.keras.utils.unpack_x_y_sample_weight(data.spec)[0])
    if not data.is_dataset:
        return data.batch_size, shapes
    if not batches.is_batched(data.spec):
        raise ValueError(
            "`fit` must be given batches. Received: a dataset of single samples, "
            f"{arguments.brief(data.spec)}. Use dataset.batch(batch_size)."
        )
    first = getattr(next(iter(tf.nest.flatten(data.spec)), None), "shape", None)
    return first[0] if first is not None and first.rank else None, shapes

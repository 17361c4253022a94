"""One call: a pre-trained network fitted to new data in the seconds that there are."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, stack
from elastic_tf.arguments import brief
from elastic_tf.choose.budget.course import RATE, Course, as_samples
from elastic_tf.choose.budget.settings import Deadline
from elastic_tf.model import ElasticModel
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.train import optimizers
from elastic_tf.train.batches import sample_shapes
from elastic_tf.train.engine.checks import warn_if_unlike, warn_if_untrained
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.head.targets import at_each, end_of, map_axes, of_loss, of_values, with_head
from elastic_tf.train.samples import Samples

L = tf.keras.layers


def finetune(
    model: tf.keras.Model,
    train: Any,
    validation: Any = None,
    *,
    seconds: float = 600.0,
    epochs: int = 5,
    batch_size: int = 16,
    learning_rate: float | None = None,
    loss: Any = None,
    metrics: Sequence[Any] | None = None,
    class_weight: Mapping[int, float] | None = None,
    profile: TimingProfile | str | Path | None = None,
    verbose: int = 1,
) -> ElasticMixin:
    """Fit a pre-trained network to new data, in `seconds` at most.

    The targets say what is learned: class numbers or rows with a single 1 are classes, other rows
    of zeros and ones are labels that may go together, other numbers are values (regression); a
    network that gives maps or sequences learns one of these at each position. The head gets as many
    outputs, and is solved in closed form. Batch
    normalisation uses its stored statistics; dropout and augmentation run as in training. Then
    `et.optimizers.shampoo` trains the last tensors, as many as fit into the time, at a rate that
    falls to zero as it ends, and the head is solved again. What lies before them is computed once
    for each sample. With `validation`, of the first head, the last weights, and these with the
    head solved again, the last is kept that is as good as the best before, within two standard
    errors of its accuracy. The network's own weights are trained. Where the network has a head for
    these outputs, it counts as it is given, too. Ctrl-C ends the steps early; the head is solved
    again all the same. A second one ends at once, with what was kept before the steps; without
    `validation` with the last weights.

    Args:
        model: built Keras network. Its last dense layer stays if it has a unit for each output and
            an end for them: linear; softmax for classes, sigmoid for labels. Else it is replaced
            where it is a classifier, by a softmax or sigmoid end or a compiled crossentropy; any
            other end is features, for a new layer. A convolution that ends maps is replaced, too,
            where it is a classifier or has a channel for each output. Weights are shared with the
            result; a new head is the result's own.
        train: `Samples`; what `et.data.image_folder` gives; arrays (x, y), as the model takes them
            and targets of shape (n,), (n, 1) or (n, outputs), with the axes of maps behind n; or a
            finite `tf.data.Dataset` of such samples or batches, read into memory once: random
            augmentation in it is drawn once, too.
        validation: arrays (x, y), or a `tf.data.Dataset` of batches, read into memory. None keeps
            the last weights, or the first head where training did harm.
        seconds: for everything. Where they do not suffice to train, the head alone is solved, on as
            many samples as were read in time.
        epochs: passes over the samples at most.
        batch_size: of a step, where `train` is not `Samples`.
        learning_rate: at its highest. None: 3.5e-4.
        loss: as for `compile`. One of Keras's crossentropies or errors goes before what the targets
            say: "mse" makes values of whole numbers. Crossentropies take logits where the head
            gives them, as a new one does; a loss of your own is given these, too. None: a
            crossentropy, or the mean squared error of values.
        metrics: as for `compile`. None: the accuracy of classes and labels. Weights are judged by
            the metric "accuracy", without one by the loss.
        class_weight: as for `fit`; validation samples are not weighted.
        profile: times of this network with this head and batches of this size, or their file. None:
            foretold from a forward pass.
        verbose: as in `tf.keras.Model.fit`; 0 prints nothing.

    Returns:
        The trained elastic model, with `history` as after `fit`. Where there are too few seconds to
        train, its head alone is solved, and a warning says so.

    Raises:
        ValueError: the targets are none of these, inputs are not finite, the network's end can have
            no such head, or the profile is of something else.
    """
    started = time.perf_counter()
    Deadline(seconds)  # checked before the work
    arguments.count("epochs", epochs)
    if isinstance(profile, (str, Path)):
        profile = TimingProfile.load(profile)
    if profile is not None:
        arguments.instance("profile", profile, TimingProfile, "a TimingProfile")
    samples = as_samples(train, batch_size)
    _check_inputs(model, samples)
    if tf.nest.is_nested(samples.arrays[1]):
        raise ValueError(
            "The targets must be those of one output. Received: "
            f"{len(tf.nest.flatten(samples.arrays[1]))} outputs. Compile and fit an "
            "et.ElasticModel for several."
        )
    labels = np.asarray(samples.arrays[1])
    axes = map_axes(model, labels.shape)
    if axes:
        _check_map_weights(samples, axes, class_weight)
    labels = at_each(labels, axes)
    kind, outputs = _task(labels, loss)
    if class_weight is not None:
        samples = samples.weighted(class_weight)
    judged = None
    if validation is not None:
        judged = _judged(validation, samples, axes, kind, outputs)
        _check_ids(model, judged)
    known = {id(one) for one in model.weights}  # a new head's are not among them
    network, has_logits = with_head(model, outputs, kind, axes=axes, verbose=bool(verbose))
    warn_if_untrained(network)
    _warn_if_frozen(network)
    elastic = ElasticModel.from_model(network)
    if metrics is None:
        metrics = [] if kind == "linear" else ["accuracy"]
    metrics = [metrics] if isinstance(metrics, str) else list(metrics)
    if kind == "sigmoid":  # Keras would ask whether a logit is above a half
        rights = ("accuracy", "acc", "binary_accuracy")
        share, least = tf.keras.metrics.BinaryAccuracy, 0.0 if has_logits else 0.5
        metrics = [share(one, threshold=least) if one in rights else one for one in metrics]
    rate = arguments.rate("learning_rate", RATE if learning_rate is None else learning_rate)
    options: dict[str, Any] = {"metrics": metrics, "statistics": "stored"}
    elastic.compile(optimizers.shampoo(rate), _loss(loss, kind, labels, has_logits), **options)
    course = Course(
        elastic,
        samples,
        judged,
        seconds=seconds,
        started=started,
        epochs=epochs,
        learning_rate=rate,
        profile=profile,
        verbose=verbose,
        has_head=all(id(one) in known for one in network.weights),
    )
    course.run()
    return elastic


def _check_finite(samples: Samples, where: str = "") -> None:
    if found := samples.not_finite:
        raise ValueError(f"Inputs{where} must be finite. Received: {found}. Leave these out.")


def _check_inputs(model: tf.keras.Model, samples: Samples) -> None:
    """Refuse what is not finite; warn of inputs that are scaled otherwise than the network's."""
    if not stack.keras_model("model", model).built:
        raise ValueError(
            f"The network must be built, and pre-trained. Received: '{model.name}', which has no "
            "weights yet. Load them, or call it on a batch: model(x)."
        )
    takes = [tf.as_dtype(part.dtype) for part in getattr(model, "inputs", None) or []]
    texts = [part for part in tf.nest.flatten(samples.arrays[0]) if part.dtype == tf.string]
    if texts and takes and tf.string not in takes:
        raise ValueError(
            f"Inputs must be numbers, as '{model.name}' takes them. Received: texts, as "
            f"{texts[0][0].numpy()!r}. Read files first: et.data.image_folder."
        )
    _check_channels(model, samples)
    _check_ids(model, samples)
    _check_finite(samples)
    warn_if_unlike(model, samples.take(np.arange(min(samples.batch_size, samples.rows)))[0])


def _check_map_weights(samples: Samples, axes: int, class_weight: Any) -> None:
    """Refuse weights that Keras would put to the wrong axis of maps, or fail on."""
    shape = tuple(samples.arrays[1].shape)
    if class_weight is not None and len(shape) == 1 + axes:
        raise ValueError(
            "Class numbers of maps must have a last axis where classes have weights. Received: "
            f"targets of shape {shape}. Give y[..., None]."
        )
    if len(samples.arrays) == 3 and samples.arrays[2].shape != shape[: 1 + axes]:
        raise ValueError(
            f"Weights must be those of each position, of shape {shape[: 1 + axes]}. Received: "
            f"{tuple(samples.arrays[2].shape)}. Repeat them: np.broadcast_to."
        )


def _check_channels(model: tf.keras.Model, samples: Samples) -> None:
    """Refuse images without the channels that a network takes, before Keras prints them."""
    parts, inputs = tf.nest.flatten(samples.arrays[0]), getattr(model, "inputs", None) or []
    if len(parts) != 1 or len(inputs) != 1:
        return
    takes, shape = tf.TensorShape(inputs[0].shape)[1:], parts[0].shape[1:]
    if takes.rank == 3 and (shape.rank != 3 or takes[2] not in (None, shape[2])):
        hint = ""
        if takes[2] == 3 and (shape.rank == 2 or shape[-1] == 1):
            hint = f" Grey images: np.repeat(x{'[..., None]' * (shape.rank == 2)}, 3, axis=-1)."
        raise ValueError(
            f"Inputs must be images as '{model.name}' takes them, {tuple(takes)}. Received: "
            f"samples of shape {tuple(shape)}.{hint}"
        )


def _check_ids(model: tf.keras.Model, samples: Samples) -> None:
    """Refuse token ids that an embedding has no row for; a GPU would take zeros for them."""
    inputs = getattr(model, "inputs", None) or []
    for taken, part in zip(inputs, tf.nest.flatten(samples.arrays[0])):
        for layer in stack.layers_behind(taken._keras_history[0]):
            if isinstance(layer, L.Embedding) and part.dtype != tf.string:
                low, high = int(tf.reduce_min(part)), int(tf.reduce_max(part))
                rows = layer.input_dim
                if low < 0 or high >= rows:
                    raise ValueError(
                        f"Token ids must be from 0 to {rows - 1}, for '{layer.name}' has {rows} "
                        f"rows. Received: {low} to {high}. Give an unknown word the id that "
                        "pre-training gave it."
                    )


def _warn_if_frozen(network: tf.keras.Model) -> None:
    """Say so where nothing can be trained but the last layer."""
    dense, _ = end_of(network)
    others = [
        one
        for one in stack.layers_of(network)
        if one is not dense and one.weights and len(stack.layers_of(one)) == 1
    ]
    if others and not any(one.trainable_weights for one in others):
        warnings.warn(
            f"Something before the last layer should be trainable. Received: '{network.name}', "
            f"all of which is frozen, {len(others)} layers. Set its `trainable = True` first: what "
            "there is no time to train costs nothing here.",
            stacklevel=3,
        )


def _judged(validation: Any, samples: Samples, axes: int, kind: str, outputs: int) -> Samples:
    """The data to judge by, like those that are trained on."""
    try:
        found = as_samples(validation)
    except ValueError as error:
        raise ValueError(f"`validation` cannot be judged by. {error}") from error
    _check_finite(found, " of `validation`")
    shapes = [sample_shapes(one.arrays[0]) for one in (found, samples)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "Inputs of `validation` must be like those of `train`. Received: samples of shape "
            f"{shapes[0]}, and {shapes[1]} to train on."
        )
    y, labels = (np.asarray(one.arrays[1]) for one in (found, samples))
    if not axes:
        y, labels = at_each(y, 0), at_each(labels, 0)
    if y.shape[1:] != labels.shape[1:]:
        raise ValueError(
            "Targets of `validation` must be like those of `train`. Received: "
            f"shape {y.shape}, and {labels.shape} to train on."
        )
    y = at_each(y, axes)
    if kind == "softmax" and y.ndim == 2 and (y.sum(axis=1).round(3) != 1).any():
        raise ValueError(
            "Rows of `validation` must be like those of `train`, of one class each. Received: rows "
            "of several labels or none. If labels may go together, give "
            "loss=tf.keras.losses.BinaryCrossentropy()."
        )
    if kind == "softmax" and y.ndim == 1 and not np.isin(y, np.arange(outputs)).all():
        other = y[~np.isin(y, np.arange(outputs))]
        raise ValueError(
            f"Classes of `validation` must be among those of `train`, 0 to {outputs - 1}. Received:"
            f" {brief(np.unique(other))} in {len(other)} samples. Leave these out, or train on "
            "samples of these classes, too."
        )
    return found


def _task(y: np.ndarray, loss: Any) -> tuple[str, int]:
    """What the outputs stand for, "softmax", "sigmoid" or "linear", and how many there are."""
    arguments.numbered(y)
    if y.ndim not in (1, 2) or y.dtype.kind not in "iubf" or not np.isfinite(y).all():
        raise ValueError(
            "The targets must be finite numbers of shape (samples,) or (samples, outputs), or such "
            f"at each position of the network's maps. Received: {brief(y)} of shape {y.shape}. "
            "Compile and fit an et.ElasticModel for others."
        )
    columns = y.shape[1] if y.ndim == 2 else 1
    told = loss is not None and (of_loss(loss) or (of_values(loss) and "linear"))
    if told:
        kind = told
    elif y.ndim == 2 and np.isin(y, (0, 1)).all():
        kind = "softmax" if (y.sum(axis=1) == 1).all() else "sigmoid"
    else:
        kind = "linear" if y.ndim == 2 or (y % 1).any() else "softmax"
    if kind != "softmax" or y.ndim == 2:
        return kind, columns
    if y.min() > 0:
        raise ValueError(
            "Classes must be numbered from 0, and samples of class 0 be there. Received: numbers "
            f"from {y.min():g} to {y.max():g}. Subtract {y.min():g}, or number them with "
            'np.unique(y, return_inverse=True); if they are values, give loss="mse".'
        )
    if y.min() < 0 or y.max() == 0:
        raise ValueError(
            "Class numbers must be of two classes or more, from 0. Received: numbers from "
            f"{y.min():g} to {y.max():g}. Number them with np.unique(y, return_inverse=True); if "
            'they are values, give loss="mse".'
        )
    empty = np.setdiff1d(np.arange(y.max()), y)
    if len(empty):
        warnings.warn(
            f"Each class should have samples. Received: none of {brief(empty.tolist())}, and "
            f"{(y == y.max()).sum()} of class {y.max():g}, so that there are {y.max() + 1:g} "
            "classes. Look at the labels, or number those that there are with "
            "np.unique(y, return_inverse=True).",
            stacklevel=3,
        )
    return kind, int(y.max()) + 1


def _loss(given: Any, kind: str, labels: np.ndarray, has_logits: bool) -> Any:
    """The given loss, or that of the task, of logits where the head gives these."""
    losses = tf.keras.losses
    if kind == "linear":
        return losses.MeanSquaredError() if given is None else given
    if given is None or (of_loss(given) and not isinstance(given, losses.Loss)):
        numbers = losses.SparseCategoricalCrossentropy
        classes = numbers if labels.ndim == 1 else losses.CategoricalCrossentropy
        given = classes() if kind == "softmax" else losses.BinaryCrossentropy()
    if not of_loss(given):
        return given  # one's own takes what the head gives
    return type(given).from_config({**given.get_config(), "from_logits": has_logits})

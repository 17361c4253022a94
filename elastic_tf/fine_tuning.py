"""One call: a pre-trained classifier fitted to new classes in the seconds that there are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, stack
from elastic_tf.arguments import brief
from elastic_tf.choose.budget.course import RATE, Course
from elastic_tf.choose.budget.settings import Deadline
from elastic_tf.model import ElasticModel
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.train import optimizers
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.head.targets import of_loss
from elastic_tf.train.inputs.batches import is_batched
from elastic_tf.train.inputs.samples import Samples

L = tf.keras.layers
_ENDS = {tf.nn.softmax: "softmax", tf.nn.sigmoid: "sigmoid"}  # others have the name of Keras


def finetune(
    model: tf.keras.Model,
    train: Any,
    validation: Any = None,
    *,
    seconds: float = 600.0,
    epochs: int = 5,
    batch_size: int = 16,
    learning_rate: float | None = None,
    profile: TimingProfile | str | Path | None = None,
    verbose: int = 1,
) -> ElasticMixin:
    """Fit a pre-trained classifier to new data, in `seconds` at most.

    The head gets as many outputs as there are classes, and is solved in closed form. Batch
    normalisation uses its stored statistics; dropout and augmentation run as in training. Then
    `et.optimizers.shampoo` trains the last tensors, as many as fit into the time, at a rate that
    falls to zero as it ends, and the head is solved again. What lies before them is computed once
    for each sample. With `validation`, the best weights are kept; those of the first head count.

    Args:
        model: built Keras network. Its last dense layer stays if it has a unit for each class and
            a linear or softmax end. Else it is replaced where it is a classifier, by a softmax or
            sigmoid end or a compiled crossentropy; any other end is features, for a new layer.
            Weights are shared with the result; a new head is the result's own.
        train: `Samples`; or arrays (x, y), as the model takes them and class numbers, of shape (n,)
            or (n, 1), or rows of zeros and ones; or a finite `tf.data.Dataset` of such samples or
            batches, read into memory once: random augmentation in it is drawn once, too.
        validation: arrays (x, y), or a `tf.data.Dataset` of batches. None keeps the last weights,
            or the first head where training did harm.
        seconds: for everything. Where they do not suffice to train, the head alone is solved, on as
            many samples as were read in time.
        epochs: passes over the samples at most.
        batch_size: of a step, where `train` is not `Samples`.
        learning_rate: at its highest. None: 1.25e-4 over the square root of the trained share of a
            full step; 2.5e-4 at a quarter.
        profile: times of this network with this head and batches of this size, or their file. None:
            foretold from a forward pass.
        verbose: as in `tf.keras.Model.fit`; 0 prints nothing.

    Returns:
        The trained elastic model, with `history` as after `fit`. Where there are too few seconds to
        train, its head alone is solved, and a warning says so.

    Raises:
        ValueError: there are no classes to learn, the network's end is no classifier's, or the
            profile is of something else.
    """
    started = time.perf_counter()
    Deadline(seconds)  # checked before the work
    arguments.count("epochs", epochs)
    if isinstance(profile, (str, Path)):
        profile = TimingProfile.load(profile)
    if profile is not None:
        arguments.instance("profile", profile, TimingProfile, "a TimingProfile")
    samples = _samples(train, batch_size)
    _check_validation(validation)
    labels = np.asarray(samples.arrays[1])
    labels = labels[:, 0] if labels.shape[1:] == (1,) else labels
    network, has_logits = _with_head(model, _classes(labels), verbose=bool(verbose))
    elastic = ElasticModel.from_model(network)
    kind = tf.keras.losses.CategoricalCrossentropy
    if labels.ndim == 1:
        kind = tf.keras.losses.SparseCategoricalCrossentropy
    loss = kind(from_logits=has_logits)
    options: dict[str, Any] = {"metrics": ["accuracy"], "statistics": "stored"}
    rate = RATE if learning_rate is None else learning_rate
    elastic.compile(optimizers.shampoo(rate), loss, **options)
    course = Course(
        elastic,
        samples,
        validation,
        seconds=seconds,
        started=started,
        epochs=epochs,
        learning_rate=learning_rate,
        profile=profile,
        verbose=verbose,
    )
    course.run()
    return elastic


def _samples(train: Any, batch_size: int) -> Samples:
    if isinstance(train, Samples):
        return train
    if isinstance(train, tf.data.Dataset):
        single = train.unbatch() if is_batched(train.element_spec) else train
        return Samples(single, batch_size=batch_size)
    if not isinstance(train, (tuple, list)) or len(train) not in (2, 3):
        raise ValueError(
            f"`train` must be (x, y), a tf.data.Dataset or et.Samples. Received: {brief(train)}."
        )
    x, y, weight = (*train, None)[:3]
    return Samples(x, y, sample_weight=weight, batch_size=batch_size)


def _check_validation(validation: Any) -> None:
    is_pair = isinstance(validation, tuple) and len(validation) == 2
    ends = isinstance(validation, tf.data.Dataset) and (
        validation.cardinality() != tf.data.INFINITE_CARDINALITY
    )
    if not (validation is None or is_pair or ends):
        raise ValueError(
            "`validation` must be (x, y) or a tf.data.Dataset of batches that ends. Received: "
            f"{brief(validation)}."
        )


def _classes(y: np.ndarray) -> int:
    """How many classes the targets name."""
    whole = y.dtype.kind in "iub" or (y.dtype.kind == "f" and not (y % 1).any())
    if y.ndim == 2 and y.shape[1] > 1 and whole and (y.sum(axis=1) == 1).all():
        return y.shape[1]
    if y.ndim == 1 and whole and y.min() > 0:
        raise ValueError(
            "Classes must be numbered from 0, and samples of class 0 be there. Received: numbers "
            f"from {y.min():g} to {y.max():g}. Subtract {y.min():g}, or number them with "
            "np.unique(y, return_inverse=True)."
        )
    if y.ndim == 1 and whole and y.min() >= 0 and y.max() > 0:
        return int(y.max()) + 1
    raise ValueError(
        "The targets must be numbers of two classes or more from 0, or rows with a single 1. "
        f"Received: {brief(y)} of shape {y.shape}. Compile and fit an et.ElasticModel for others."
    )


def _with_head(
    model: tf.keras.Model, classes: int, *, verbose: bool
) -> tuple[tf.keras.Model, bool]:
    """The network with so many outputs, and whether these are logits."""
    stack.keras_model("model", model)
    is_single = isinstance(model.output_shape, tuple)
    shape = tf.TensorShape(model.output_shape) if is_single else model.output_shape
    ends = stack.graph_ends(model)
    dense, end = _end(model)
    if dense is not None and (not is_single or dense.units != shape[-1] or shape.rank != 2):
        dense = None
    if dense is not None and dense.units == classes and end in ("linear", "softmax"):
        if ends is not None:  # to be compiled anew
            inputs = tf.nest.map_structure(_input_like, ends[0])
            model = tf.keras.Model(inputs, model(inputs))
        return model, end == "linear"
    is_classifier = end in ("softmax", "sigmoid") or (dense is not None and of_loss(model))
    if ends is None or not is_single or (is_classifier and dense not in model.layers):
        raise ValueError(
            f"The network must end in a dense layer of {classes} classes, or in features. "
            f"Received: '{model.name}' with outputs of {shape}, a {end} end. Give it a new one: "
            f"tf.keras.layers.Dense({classes})."
        )
    inputs = tf.nest.map_structure(_input_like, ends[0])
    if is_classifier:
        model = tf.keras.Model(ends[0], dense.input)
    elif dense is not None and end == "linear" and verbose:
        print(
            f"The {dense.units} outputs of '{dense.name}' are taken for features. To replace that "
            "layer, give tf.keras.Model(network.input, network.get_layer"
            f"({dense.name!r}).input).",
            flush=True,
        )
    features = model(inputs)
    if len(features.shape) == 4:
        features = L.GlobalAveragePooling2D()(features)
    return tf.keras.Model(inputs, L.Dense(classes, name="new_head")(features)), True


def _end(model: tf.keras.Model) -> tuple[Any, str]:
    """The dense layer at the end, None if there is none, and the last activation behind it."""
    end = "linear"
    for layer in reversed(stack.layers_of(model)):
        holds = len(stack.layers_of(layer)) > 1
        if not layer.built or holds or isinstance(layer, L.InputLayer):
            continue
        if not isinstance(layer, (L.Softmax, L.Activation, L.Dense)):
            break
        kind = getattr(layer, "activation", tf.nn.softmax)
        if end == "linear":
            end = str(_ENDS.get(kind) or getattr(kind, "__name__", "custom"))
        if isinstance(layer, L.Dense):
            return layer, end
    return None, end


def _input_like(tensor: Any) -> Any:
    return tf.keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name)

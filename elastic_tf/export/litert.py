"""`litert`: a folder with a file that trains in the LiteRT interpreter, and the program for it."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, lite
from elastic_tf.export import updates
from elastic_tf.export.network import Network
from elastic_tf.files import atomic
from elastic_tf.importance import measures
from elastic_tf.selection.selector import select_tensors
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.timing.profiler import profile_model
from elastic_tf.zoo.models import head_tensors

FORMAT = 1  # of the folder
_SPEC = tf.TensorSpec


def litert(
    model: Any,
    path: str | Path,
    profile: TimingProfile | None = None,
    rhos: Sequence[float] = (0.2, 0.35, 0.5, 1.0),
    *,
    batch_size: int | None = None,
    class_names: Sequence[str] | None = None,
) -> list[np.ndarray]:
    """Write a folder in which the model trains without TensorFlow, under one of several plans.

    The folder holds `model.tflite` with a training step for each plan, `model.json`, and the
    runner: `pip install numpy pillow ai-edge-litert` is all that a device needs. The plans are the
    last tensors that fit each share of a step, the head always, with the frozen part of the network
    computed once for each image. Dropout is left out, and normalisations keep their statistics.

    Args:
        model: a compiled elastic model that takes one batch of images and returns logits or a
            softmax of classes; its loss is the sparse cross-entropy of these.
        path: a new folder.
        profile: of the model, for the choice of the plans; measured here if left out.
        rhos: shares of a full step, ascending.
        batch_size: samples of a step; the profile's if left out, else 4.
        class_names: in the order of the outputs.

    Returns:
        What each plan trains: bool masks of shape (N,), the cheapest first.

    Raises:
        ValueError: an op, the loss or the optimizer cannot be written; nothing is, then.
    """
    arguments.elastic(model, compiled=True)
    target = Path(arguments.path("path", path))
    if target.exists():
        raise ValueError(f"`path` must be a new folder. Received: '{target}', which is there.")
    size = batch_size or (profile.batch_size if profile else 0) or 4
    arguments.count("batch_size", size)
    step = _Steps(model, size)
    for rho in rhos:
        arguments.rho("rhos", rho)
    if class_names is not None and len(class_names) != step.classes:
        raise ValueError(
            f"`class_names` must be one for each of {step.classes} outputs. Received: "
            f"{len(class_names)}."
        )
    if profile is None:
        shape = (size, *model.input_shape[1:])
        x, y = np.zeros(shape, np.float32), np.arange(size) % step.classes
        profile = profile_model(model, x, y, calibrate=False)
    masks, ratios = _ladder(model, profile, rhos)
    content, told = step.convert(masks)
    described = {
        "format": FORMAT,
        "model": model.name,
        "batch_size": size,
        "input_shape": list(model.input_shape[1:]),
        "classes": step.classes,
        "class_names": None if class_names is None else list(map(str, class_names)),
        **told,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    for plan, rho, ratio in zip(described["plans"], rhos, ratios):
        plan.update(rho=float(rho), predicted_ratio=ratio)
    with tempfile.TemporaryDirectory(dir=atomic.directory(target.parent)) as folder:
        made = Path(folder) / target.name
        made.mkdir()
        (made / "model.tflite").write_bytes(content)
        (made / "model.json").write_text(json.dumps(described, indent=1), encoding="utf-8")
        for module in Path(lite.__file__).parent.glob("*.py"):
            shutil.copy(module, made)
        made.replace(target)
    return masks


def _ladder(
    model: Any, profile: TimingProfile, rhos: Sequence[float]
) -> tuple[list[np.ndarray], list[float]]:
    """The plan of each share, and the share that it is predicted to take."""
    profile.check(model)
    cached, required = profile.with_cached_prefix(), head_tensors(model)
    masks, ratios = [], []
    for rho in rhos:
        worth = measures.depth(model)
        chosen = select_tensors(worth, cached, rho, required=required, strategy="order")
        masks.append(chosen.mask)
        ratios.append(chosen.time / profile.t_full)
    return masks, ratios


class _Steps:
    """The functions of the file, over the variables of a model."""

    def __init__(self, model: Any, size: int) -> None:
        self.model = model
        self.update = updates.of(model.optimizer)
        kind = _SPEC((size, *model.input_shape[1:]), tf.float32)
        self.network = Network(lambda x: model(x, training=False), kind)
        self.logits = _logits(model, self.network.output)
        self.classes = int(self.logits.shape[-1])
        self.images = kind
        self.labels = _SPEC((size,), tf.int32)
        self.weights = _SPEC((size,), tf.float32)
        for layer in model._flatten_layers():
            if getattr(layer, "rate", 0) and "Dropout" in type(layer).__name__:
                warnings.warn(
                    f"Dropout is left out of the file: '{layer.name}' and others like it.",
                    stacklevel=3,
                )
                break

    def convert(self, masks: Sequence[np.ndarray]) -> tuple[bytes, dict[str, Any]]:
        """The file, and what its signatures mean."""
        module = tf.Module()
        tensors = self.model.tensors
        ever = np.any(masks, axis=0)
        held = [tensor for tensor, on in zip(tensors, ever) if on]
        slots = {}
        for tensor in held:
            shapes = [() if name == "steps" else tensor.shape for name in self.update.slots]
            slots[tensor.ref()] = [tf.Variable(tf.zeros(shape)) for shape in shapes]
        state = [one for tensor in held for one in (tensor, *slots[tensor.ref()])]
        cuts = [self.network.cut([t for t, on in zip(tensors, mask) if on]) for mask in masks]
        # preprocessing alone is not worth keeping
        cuts = [cut if self.network.behind(cut) else self.network.input for cut in cuts]
        # all that is captured must be tracked to be saved
        module.held = [*self.model.variables, *state]
        module.infer = self._infer()
        head, before = self._head()
        module.head_features = self._features(before)
        module.importance = self._importance()
        module.save, module.restore = _stores(state)
        signatures = ["infer", "head_features", "importance", "save", "restore"]
        plans = []
        for k, (mask, cut) in enumerate(zip(masks, cuts)):
            setattr(module, f"train_{k}", self._train(mask, cut, slots))
            signatures.append(f"train_{k}")
            is_cached = cut is not self.network.input
            if is_cached:
                setattr(module, f"features_{k}", self._features(cut))
                signatures.append(f"features_{k}")
            behind = self.network.behind(cut)
            plans.append(
                {
                    "tensors": np.flatnonzero(mask).tolist(),
                    "features": f"features_{k}" if is_cached else None,
                    "feature_shape": cut.shape[1:].as_list(),
                    "changes": [
                        j
                        for j, other in enumerate(masks)
                        if any(t.ref() in behind for t, on in zip(tensors, other) if on)
                    ],
                }
            )
        index = {tensor.ref(): k for k, tensor in enumerate(tensors)}
        owners = [(t, name) for t in held for name in ("", *self.update.slots)]
        names = [
            {
                "name": tensor.name.partition(":")[0] + (f"/{name}" if name else ""),
                "shape": one.shape.as_list(),
                "tensor": None if name else index[tensor.ref()],
            }
            for (tensor, name), one in zip(owners, state)
        ]
        position = {one.ref(): k for k, one in enumerate(state)}
        told = {
            "optimizer": {
                "name": type(self.model.optimizer).__name__,
                "learning_rate": _rate(self.model.optimizer),
            },
            "tensors": [
                {"name": t.name.partition(":")[0], "shape": t.shape.as_list()} for t in tensors
            ],
            "plans": plans,
            "state": names,
            "head": {
                "kernel": position[head[0].ref()],
                "bias": position[head[1].ref()] if len(head) > 1 else None,
            },
        }
        return _converted(module, signatures), told

    def _infer(self) -> Any:
        @tf.function(input_signature=[self.images], autograph=False)
        def infer(x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"logits": self.network.run({}, self.network.input, x, self.logits)}

        return infer

    def _features(self, end: tf.Tensor) -> Any:
        @tf.function(input_signature=[self.images], autograph=False)
        def features(x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"features": self.network.run({}, self.network.input, x, end)}

        return features

    def _loss(
        self, values: dict[Any, tf.Tensor], start: tf.Tensor, x: Any, y: Any, weight: Any
    ) -> tf.Tensor:
        logits = self.network.run(values, start, x, self.logits)
        said = tf.reduce_sum(tf.one_hot(y, self.classes) * _log_softmax(logits), -1)
        return -tf.reduce_sum(said * weight) / tf.reduce_sum(weight)

    def _importance(self) -> Any:
        @tf.function(input_signature=[self.images, self.labels, self.weights], autograph=False)
        def importance(x: tf.Tensor, y: tf.Tensor, weight: tf.Tensor) -> dict[str, tf.Tensor]:
            values: dict[Any, tf.Tensor] = {}
            loss = self._loss(values, self.network.input, x, y, weight)
            wanted = [values.get(tensor.ref()) for tensor in self.model.tensors]
            found = iter(tf.gradients(loss, [one for one in wanted if one is not None]))
            gradients = [None if one is None else next(found) for one in wanted]
            sums = [0.0 if one is None else tf.reduce_sum(one * one) for one in gradients]
            return {"importance": tf.stack(sums)}

        return importance

    def _train(self, mask: np.ndarray, cut: tf.Tensor, slots: dict[Any, list[Any]]) -> Any:
        kinds = [
            _SPEC(cut.shape, tf.float32),
            self.labels,
            self.weights,
            _SPEC((), tf.float32),
        ]

        @tf.function(input_signature=kinds, autograph=False)
        def train(x: tf.Tensor, y: tf.Tensor, weight: tf.Tensor, rate: tf.Tensor) -> Any:
            values: dict[Any, tf.Tensor] = {}
            loss = self._loss(values, cut, x, y, weight)
            trained = [
                tensor
                for tensor, on in zip(self.model.tensors, mask)
                if on and tensor.ref() in values
            ]
            gradients = tf.gradients(loss, [values[tensor.ref()] for tensor in trained])
            changes = []
            for tensor, gradient in zip(trained, gradients):
                if gradient is not None:
                    own = slots[tensor.ref()]
                    before = [slot.read_value() for slot in own]
                    value = values[tensor.ref()]
                    after = self.update.apply(gradient, value, before, rate)
                    changes += list(zip((tensor, *own), after))
            for variable, value in changes:  # when all is read
                variable.assign(value)
            return {"loss": loss}

        return train

    def _head(self) -> tuple[list[tf.Variable], tf.Tensor]:
        """The tensors of the last dense layer, kernel first, and what it is given."""
        tensors = [t for t, on in zip(self.model.tensors, head_tensors(self.model)) if on]
        kernel = next((t for t in tensors if t.shape.rank == 2), None)
        taken = None if kernel is None else self.network.multiplied_by(kernel)
        if taken is None or taken.shape.rank != 2 or len(tensors) > 2:
            raise ValueError(
                "The last layer must be a Dense layer on one vector per image. Received: "
                f"{[t.name for t in tensors]}."
            )
        return sorted(tensors, key=lambda t: t is not kernel), taken


def _logits(model: Any, output: tf.Tensor) -> tf.Tensor:
    """The logits that the loss is of.

    Raises:
        ValueError: it is another loss.
    """
    loss = tf.keras.losses.get(model.loss) if isinstance(model.loss, str) else model.loss
    is_sparse = isinstance(loss, tf.keras.losses.SparseCategoricalCrossentropy)
    is_function = loss is tf.keras.losses.sparse_categorical_crossentropy
    has_softmax = output.op.type == "Softmax"
    from_logits = is_sparse and loss.get_config()["from_logits"]
    if not (is_sparse or is_function) or from_logits == has_softmax or model.losses:
        raise ValueError(
            "The loss must be SparseCategoricalCrossentropy, of logits with from_logits=True or of "
            f"a softmax, and without regularisers. Received: {arguments.brief(model.loss)} of the "
            f"output of '{output.op.name}'. Compile the model with it."
        )
    return output.op.inputs[0] if has_softmax else output


def _log_softmax(logits: tf.Tensor) -> tf.Tensor:
    shifted = logits - tf.stop_gradient(tf.reduce_max(logits, -1, keepdims=True))
    return shifted - tf.math.log(tf.reduce_sum(tf.exp(shifted), -1, keepdims=True))


def _rate(optimizer: Any) -> float:
    """The learning rate of the next step."""
    rate = optimizer.learning_rate
    return float(rate(optimizer.iterations) if callable(rate) else rate)


def _stores(state: Sequence[tf.Variable]) -> tuple[Any, Any]:
    """Functions that tell all variables, and that set them."""

    @tf.function(input_signature=[_SPEC((1,), tf.float32)], autograph=False)
    def save(unused: tf.Tensor) -> dict[str, tf.Tensor]:
        return {f"v{k}": one.read_value() for k, one in enumerate(state)}

    kinds = [_SPEC(one.shape, one.dtype, name=f"v{k}") for k, one in enumerate(state)]

    @tf.function(input_signature=kinds, autograph=False)
    def restore(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        for variable, value in zip(state, values):
            variable.assign(value)
        return {"done": tf.ones(1)}

    return save, restore


def _converted(module: tf.Module, names: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        signatures = {name: getattr(module, name) for name in names}
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(module, folder, signatures, options)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(names))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        converter.experimental_enable_resource_variables = True
        return converter.convert()

"""`litert`: a folder that trains in the LiteRT interpreter, with the program for it."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, lite
from elastic_tf.app.export.network import Network
from elastic_tf.choose.importance import depth
from elastic_tf.choose.selection import select_tensors, smallest_feasible_rho
from elastic_tf.files import directory
from elastic_tf.lite import disk
from elastic_tf.lite.updates import EVERY
from elastic_tf.stack import raw, unwrapped, variables_of
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.timing.profiler import profile_model
from elastic_tf.train.head.features import head_tensors
from elastic_tf.train.optimizers.named import SGDW
from elastic_tf.train.optimizers.shampoo import Shampoo, blocks_of, rows_of

_SPEC = tf.TensorSpec
_OPTIMIZERS = tf.keras.optimizers
# What would change an update, and is not written.
_FOREIGN = ("amsgrad", "clipnorm", "clipvalue", "global_clipnorm", "use_ema")


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

    The folder holds the runner, `model.json`, the weights, and a file for each function:
    `infer.tflite`, and for each plan `train_K.tflite`, which returns the loss and a gradient `g3`
    of each tensor that it trains, and `features_J.tflite`, what comes before the first of these.
    Weights are inputs, such as `w3`: the runner keeps and updates them in NumPy, so that a device
    holds one function and one copy of the weights in memory. `pip install numpy pillow
    ai-edge-litert` is all that it needs. The plans are the last tensors that fit each share of a
    step, the head always, with the frozen part of the network computed once for each image.
    Dropout is left out, and normalisations keep their statistics.

    Args:
        model: a compiled elastic model that takes one batch of images and returns logits or a
            softmax of classes; its loss is the sparse cross-entropy of these.
        path: a new folder.
        profile: of the model, for the choice of the plans; measured here if left out.
        rhos: shares of a full step, ascending; those that do not suffice for the head are left out.
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
    size = (profile.batch_size if profile else 0) or 4
    if batch_size is not None:
        size = arguments.count("batch_size", batch_size)
    for rho in rhos:
        arguments.rho("rhos", rho)
    if len(rhos) == 0 or any(low >= high for low, high in zip(rhos, rhos[1:])):
        raise ValueError(f"`rhos` must be one or more, ascending. Received: {rhos}.")
    files = _Files(model, size)
    if class_names is not None and len(class_names) != files.classes:
        raise ValueError(
            f"`class_names` must be one for each of {files.classes} outputs. Received: "
            f"{len(class_names)}."
        )
    if profile is None:
        shape = (size, *model.input_shape[1:])
        x, y = np.zeros(shape, np.float32), np.arange(size) % files.classes
        profile = profile_model(model, x, y)
    profile.check(model)
    cached, head = profile.with_cached_prefix(), head_tensors(model)
    worth = depth(model)
    least = smallest_feasible_rho(cached, head)  # the head is in every plan
    chosen = [
        select_tensors(worth, cached, max(rho, least), required=head, strategy="order")
        for rho in rhos
        if rho >= least or rho == rhos[-1]
    ]
    masks = [one.mask for one in chosen]
    described = {
        "format": disk.FORMAT,
        "model": model.name,
        "batch_size": size,
        "input_shape": list(model.input_shape[1:]),
        "classes": files.classes,
        "class_names": None if class_names is None else list(map(str, class_names)),
        **files.write(masks),
        "files": {name: zlib.crc32(content) for name, content in files.contents.items()},
    }
    for plan, rho, one in zip(described["plans"], rhos[len(rhos) - len(chosen) :], chosen):
        plan.update(rho=float(rho), predicted_ratio=one.time / profile.t_full)
    text = json.dumps(described, indent=1).encode()
    with tempfile.TemporaryDirectory(dir=directory(target.parent)) as folder:
        made = Path(folder) / target.name
        made.mkdir()
        for name, content in files.contents.items():
            (made / f"{name}.tflite").write_bytes(content)
        (made / "model.json").write_bytes(text)
        header = {"model": zlib.crc32(text), "class_names": described["class_names"], "updates": []}
        weights = [model.tensors[k].numpy() for k in described["held"]]
        disk.write_state(made / "weights.state", header, weights)
        for module in Path(lite.__file__).parent.glob("*.py"):
            shutil.copy(module, made)
        made.replace(target)
    return masks


class _Files:
    """The functions of the folder by name, with the weights among their inputs."""

    def __init__(self, model: Any, size: int) -> None:
        self.model, self.contents = model, dict[str, bytes]()
        self._optimizer = optimizer_settings(model)
        self._images = _SPEC((size, *model.input_shape[1:]), tf.float32)
        self._network = Network(lambda x: model(x, training=False), self._images)
        self._logits = _logits(model, self._network.output)
        self.classes = int(self._logits.shape[-1])
        self._features: dict[Any, str | None] = {self._network.input.ref(): None}  # names
        self._constants: dict[str, dict[int, list[int]]] = {}
        for layer in model._flatten_layers():
            kind = type(layer).__name__
            is_dropout = getattr(layer, "rate", 0) and "Dropout" in kind
            if is_dropout or kind.startswith(("Random", "Gaussian")):
                warnings.warn(
                    f"What draws at random is left out of the files: '{layer.name}', a {kind}, and "
                    "others like it.",
                    stacklevel=3,
                )
                break

    def write(self, masks: Sequence[np.ndarray]) -> dict[str, Any]:
        """Convert them all, and say what they mean."""
        tensors, network = self.model.tensors, self._network
        self._held = np.flatnonzero(np.any(masks, axis=0)).tolist()
        head = np.flatnonzero(head_tensors(self.model)).tolist()
        kernel, *bias = sorted(head, key=lambda k: tensors[k].shape.rank != 2)
        before = network.multiplied_by(tensors[kernel])
        if before is None or before.shape.rank != 2 or len(bias) > 1:
            raise ValueError(
                "The last layer must be a Dense layer on one vector per image. Received: "
                f"{[tensors[k].name for k in (kernel, *bias)]}."
            )
        self._forward("infer", self._logits, "logits")
        told: dict[str, Any] = {
            "optimizer": self._optimizer,
            "tensors": [
                {"name": t.name.partition(":")[0], "shape": t.shape.as_list()} for t in tensors
            ],
            "held": self._held,
            "head": {
                "kernel": kernel,
                "bias": bias[0] if bias else None,
                "features": self._before(before),
                "width": before.shape[-1],
            },
            "plans": [],
        }
        for k, mask in enumerate(masks):
            cut = network.cut([tensor for tensor, on in zip(tensors, mask) if on])
            # preprocessing alone is not worth keeping
            cut = cut if network.behind(cut) else network.input
            trained = np.flatnonzero(mask).tolist()
            self._train(f"train_{k}", trained, cut)
            told["plans"].append({"tensors": trained, "features": self._before(cut)})
        return {**told, "constants": self._constants}

    def _before(self, end: tf.Tensor) -> str | None:
        """The name of the function of these activations; None of the images."""
        if end.ref() not in self._features:
            name = self._features[end.ref()] = f"features_{len(self._features) - 1}"
            self._forward(name, end, "features")
        return self._features[end.ref()]

    def _forward(self, name: str, end: tf.Tensor, said: str) -> None:
        start = self._network.input

        def body(given: dict[str, tf.Tensor], values: dict[Any, tf.Tensor]) -> Any:
            return {said: self._network.run(values, start, given["x"], end)}

        self._add(name, body, {"x": self._images}, end, start)

    def _train(self, name: str, trained: Sequence[int], cut: tf.Tensor) -> None:
        def body(given: dict[str, tf.Tensor], values: dict[Any, tf.Tensor]) -> Any:
            logits = self._network.run(values, cut, given["x"], self._logits)
            chances = tf.nn.log_softmax(logits)
            said = tf.reduce_sum(tf.one_hot(given["y"], self.classes) * chances, -1)
            loss = -tf.reduce_sum(said * given["weight"]) / tf.reduce_sum(given["weight"])
            tensors = {f"g{k}": self.model.tensors[k].ref() for k in trained}
            wanted = {name: values[tensor] for name, tensor in tensors.items() if tensor in values}
            gradients = zip(wanted, tf.gradients(loss, list(wanted.values())))
            return {"loss": loss, **{name: one for name, one in gradients if one is not None}}

        size = self._images.shape[:1]
        kinds = {"y": _SPEC(size, tf.int32), "weight": _SPEC(size, tf.float32)}
        kinds = {"x": _SPEC(cut.shape, tf.float32), **kinds}
        self._add(name, body, kinds, self._logits, cut, trained)

    def _add(
        self,
        name: str,
        body: Any,
        kinds: dict[str, tf.TensorSpec],
        end: tf.Tensor,
        start: tf.Tensor,
        trained: Sequence[int] = (),
    ) -> None:
        """Convert a function whose inputs are named, with `w3` for tensor 3.

        LiteRT prepares kernels that are constants once, and runs them twice as fast. Frozen kernels
        are constants, and the runner writes their values of now into the file, where the file has
        each once, in its own order or with the outputs first.
        """
        behind, tensors = self._network.behind(end, start), self.model.tensors
        taken = [k for k in self._held if tensors[k].ref() in behind]
        large = {k for k in taken if tensors[k].shape.rank > 1 and np.prod(tensors[k].shape) >= 64}
        fixed = {k: tensors[k].numpy() for k in taken if k in large and k not in trained}
        while True:
            function, alone = self._function(body, kinds, taken, fixed)
            if len(alone) == len(fixed):
                content = self._converted(function)
                places = {k: place for k, one in fixed.items() if (place := _place(content, one))}
                if len(places) == len(fixed):
                    self.contents[name], self._constants[name] = content, places
                    return
                alone = set(places)
            fixed = {k: fixed[k] for k in alone}

    def _function(
        self,
        body: Any,
        kinds: dict[str, tf.TensorSpec],
        taken: Sequence[int],
        fixed: Mapping[int, np.ndarray],
    ) -> tuple[Any, set[int]]:
        """What is converted, and which of the constants are kernels that are used once."""
        own = [k for k in taken if k not in fixed]
        kinds = kinds | {f"w{k}": _SPEC(self.model.tensors[k].shape, tf.float32) for k in own}
        constants: dict[int, tf.Tensor] = {}

        def run(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            given = dict(zip(kinds, inputs))
            constants.update({k: tf.constant(value) for k, value in fixed.items()})
            values = {k: given[f"w{k}"] for k in own} | constants
            return body(given, {self.model.tensors[k].ref(): one for k, one in values.items()})

        signature = [_SPEC(one.shape, one.dtype, key) for key, one in kinds.items()]
        function = tf.function(run, input_signature=signature, autograph=False)
        function.get_concrete_function()
        return function, {k for k, one in constants.items() if _is_kernel_alone(one)}

    def _converted(self, function: Any) -> bytes:
        module = tf.Module()
        module.held = variables_of(self.model)  # all that is captured must be tracked
        with tempfile.TemporaryDirectory() as folder:
            options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
            tf.saved_model.save(module, folder, {"run": function}, options)
            converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["run"])
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
            return converter.convert()


def _logits(model: Any, output: tf.Tensor) -> tf.Tensor:
    """The logits that the loss is of; another loss is a ValueError."""
    loss = tf.keras.losses.get(model.loss) if isinstance(model.loss, str) else model.loss
    is_sparse = isinstance(loss, tf.keras.losses.SparseCategoricalCrossentropy)
    is_function = loss is tf.keras.losses.sparse_categorical_crossentropy
    last = output.op
    while last.type == "Identity":
        last = last.inputs[0].op
    has_softmax = last.type == "Softmax"
    from_logits = is_sparse and loss.get_config()["from_logits"]
    if not (is_sparse or is_function) or from_logits == has_softmax or model.losses:
        raise ValueError(
            "The loss must be SparseCategoricalCrossentropy, of logits with from_logits=True or of "
            f"a softmax, and without regularisers. Received: {arguments.brief(model.loss)} of the "
            f"output of '{output.op.name}'. Compile the model with it."
        )
    return last.inputs[0] if has_softmax else output


def optimizer_settings(model: Any) -> dict[str, Any]:
    """The settings that `elastic_tf.lite.updates` takes; a ValueError where one is not written."""
    inner = unwrapped(model.optimizer)
    settings = inner.get_config()
    decay = settings.get("weight_decay") or 0.0
    foreign = next((f"{name}={settings[name]}" for name in _FOREIGN if settings.get(name)), "")
    if not foreign and decay and not isinstance(inner, SGDW):
        foreign = f"weight_decay={decay}"
    is_known = isinstance(inner, (_OPTIMIZERS.SGD, _OPTIMIZERS.Adam))
    if foreign or not is_known or type(inner) is _OPTIMIZERS.AdamW:
        raise ValueError(
            "The optimizer must be SGD, SGDW, Adam or Shampoo, without clipping, averages or "
            f"weight decay but SGDW's. Received: {type(inner).__name__}"
            f"{foreign and ' with ' + foreign}. Compile the model with "
            "elastic_tf.train.optimizers.adam(1e-3), for instance."
        )
    rate = model.optimizer.learning_rate
    rate = rate(model.optimizer.iterations) if callable(rate) else rate
    found: dict[str, Any] = {"learning_rate": float(rate)}
    if isinstance(inner, _OPTIMIZERS.SGD):
        found.update(momentum=float(settings["momentum"]), nesterov=bool(settings["nesterov"]))
        return {**found, "decay": float(decay)}
    found.update({name: float(settings[name]) for name in ("beta_1", "beta_2", "epsilon")})
    if isinstance(inner, Shampoo):
        found.update(momentum=inner.momentum, memory=inner.memory)
        turns = {id(raw(variable)): k for k, variable in enumerate(model.trainable_variables)}
        found["matrices"] = {
            str(k): {"rows": rows, "blocks": blocks_of(rows), "turn": turns[id(tensor)] % EVERY}
            for k, tensor in enumerate(model.tensors)
            if (rows := rows_of(tensor))
        }
    return found


def _is_kernel_alone(constant: tf.Tensor) -> bool:
    """Whether one convolution or matrix product takes the constant, and nothing else."""
    users = list(_users(constant))
    return len(users) == 1 and users[0] in ("Conv2D", "DepthwiseConv2dNative", "MatMul")


def _users(tensor: tf.Tensor) -> Iterator[str]:
    """Kinds of the ops that take a tensor, reshaped at most."""
    for op in tensor.consumers():
        if op.type in ("Identity", "IdentityN", "Reshape"):
            for given, said in zip(op.inputs, op.outputs):
                if given is tensor:
                    yield from _users(said)
        else:
            yield op.type


def _place(content: bytes, value: np.ndarray) -> list[int] | None:
    """Where the file has the values, and whether with their last axis first."""
    orders = [value.tobytes(), np.moveaxis(value, -1, 0).tobytes()]
    found = {content.find(one): first for first, one in enumerate(orders) if one in content}
    ((start, first),) = found.items() if len(found) == 1 else ((-1, 0),)
    return [start, first] if start >= 0 and content.count(orders[first]) == 1 else None

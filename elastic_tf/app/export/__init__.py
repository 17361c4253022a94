"""Ways out of TensorFlow: files that train where it does not fit.

`rules` has the ops of a model and their gradients in built-in ops of LiteRT; `network` runs a
traced model by these rules and converts its functions; `litert` writes the folder, with the
settings of the optimizer.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, lite
from elastic_tf.app.export.network import Functions
from elastic_tf.choose.importance import depth
from elastic_tf.choose.selection import select_tensors, smallest_feasible_rho
from elastic_tf.files import directory
from elastic_tf.lite import disk
from elastic_tf.lite.updates import EVERY
from elastic_tf.stack import raw, unwrapped
from elastic_tf.timing.profile import TimingProfile
from elastic_tf.timing.profiler import profile_model
from elastic_tf.train.head.features import head_tensors
from elastic_tf.train.optimizers.named import SGDW
from elastic_tf.train.optimizers.shampoo import Shampoo, blocks_of, rows_of

__all__ = ["litert"]

_OPTIMIZERS = tf.keras.optimizers
# What would change an update, and is not written.
_FOREIGN = ("amsgrad", "clipnorm", "clipvalue", "global_clipnorm")


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
    if batch_size is None:
        batch_size = (profile.batch_size if profile else 0) or 4
    size = arguments.count("batch_size", batch_size)
    for rho in rhos:
        arguments.rho("rhos", rho)
    if len(rhos) == 0 or any(low >= high for low, high in zip(rhos, rhos[1:])):
        raise ValueError(f"`rhos` must be one or more, ascending. Received: {rhos}.")
    optimizer, files = optimizer_settings(model), Functions(model, size)
    if class_names is not None and len(class_names) != files.classes:
        raise ValueError(
            f"`class_names` must be one for each of {files.classes} outputs. Received: "
            f"{len(class_names)}."
        )
    if profile is None:
        x = np.zeros((size, *model.input_shape[1:]), np.float32)
        profile = profile_model(model, x, np.arange(size) % files.classes)
    profile.check(model)
    cached, head = profile.with_cached_prefix(), head_tensors(model)
    least = smallest_feasible_rho(cached, head)  # the head is in every plan
    kept = [rho for rho in rhos if rho >= least or rho == rhos[-1]]
    chosen = [
        select_tensors(depth(model), cached, max(rho, least), required=head, strategy="order")
        for rho in kept
    ]
    masks = [one.mask for one in chosen]
    described = {
        "format": disk.FORMAT,
        "model": model.name,
        "batch_size": size,
        "input_shape": list(model.input_shape[1:]),
        "classes": files.classes,
        "class_names": None if class_names is None else list(map(str, class_names)),
        "optimizer": optimizer,
        "tensors": [
            {"name": one.name.partition(":")[0], "shape": one.shape.as_list()}
            for one in model.tensors
        ],
        **files.write(masks),
        "files": {name: zlib.crc32(content) for name, content in files.contents.items()},
    }
    for plan, rho, one in zip(described["plans"], kept, chosen):
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
            "The optimizer must be SGD, SGDW, Adam or Shampoo, without clipping or "
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

"""Reads weight files into models, or says which layer does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import tensorflow as tf

from elastic_tf.stack import to_snake_case

Shapes = list[tuple[int, ...]]


def load(model: tf.keras.Model, backbone: tf.keras.Model, path: str | Path) -> str:
    """Load a weights file into a model, or into the part of it without the head.

    A file that fits the whole model is loaded whole. Otherwise a file that fits the backbone goes
    into the backbone and the head stays fresh; one further layer with weights, the head of other
    classes, is passed over.

    Args:
        model: backbone and head.
        backbone: the model without its head; shares the layers.
        path: HDF5 file written by `save_weights` or `save` of Keras 2.

    Returns:
        "model" or "backbone": what was loaded.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not a file of weights, or one that does not fit; the first layer that differs
            is named. Nothing has been loaded.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"`weights` must be None, 'imagenet' or a file. Received: '{path}', which is no file."
        )
    by_name, stored = _layout(path)
    if _difference(model, stored, by_name) is None and len(stored) == len(_weighted(model)):
        part, target = "model", model
    else:
        difference = _difference(backbone, stored, by_name) or _surplus(backbone, stored, by_name)
        if difference is not None:
            raise ValueError(
                f"The weights must fit '{model.name}'. Received: '{path}'; first difference at "
                f"{difference}. Build the model as it was when the weights were saved (name, "
                "alpha, input size), or use other weights."
            )
        part, target = "backbone", backbone
    if by_name:
        target.load_weights(path)
    else:
        _load_in_order(target, path)
    return part


def _layout(path: Path) -> tuple[bool, dict[str, Shapes]]:
    """Whether layers are found by Keras 3 names, and the shapes of each layer with weights."""
    try:
        with h5py.File(path, "r") as file:
            by_name = "layers" in file and "layer_names" not in file.attrs
            if not by_name:
                return False, {name: _shapes(group) for name, group in _groups(file, path)}
            layers = {name: _shapes(group) for name, group in file["layers"].items()}
    except OSError as error:
        raise ValueError(
            f"`weights` must be an HDF5 file of weights. Received: '{path}', which cannot be read "
            f"as one: {error}. Write it with model.save_weights('NAME.weights.h5')."
        ) from error
    if not path.name.endswith(".weights.h5"):
        raise ValueError(
            f"A file of this kind must be named *.weights.h5. Received: '{path}'. Rename it."
        )
    return True, {name: shapes for name, shapes in layers.items() if shapes}


def _groups(file: Any, path: Path) -> list[tuple[str, Any]]:
    """Layers with weights of a file in Keras 2's own format, in the order of the model."""
    root = file["model_weights"] if "model_weights" in file else file
    if "layer_names" not in root.attrs:
        raise ValueError(
            f"`weights` must be an HDF5 file of weights. Received: '{path}', which has no layers. "
            "Write it with model.save_weights('NAME.weights.h5')."
        )
    names = [_text(name) for name in root.attrs["layer_names"]]
    return [(name, root[name]) for name in names if len(root[name].attrs["weight_names"])]


def _shapes(group: Any) -> Shapes:
    """Shapes of all arrays below a group, sorted."""
    shapes: Shapes = []
    group.visititems(
        lambda _, item: shapes.append(item.shape) if isinstance(item, h5py.Dataset) else None
    )
    return sorted(shapes)


def _weighted(model: tf.keras.Model) -> dict[str, Any]:
    """Layers with weights by the names Keras 3 gives them in a file: class and running number."""
    seen: dict[str, int] = {}
    layers = {}
    for layer in model.layers:
        kind = to_snake_case(type(layer).__name__)
        number = seen.get(kind, 0)
        seen[kind] = number + 1
        if layer.weights:
            layers[f"{kind}_{number}" if number else kind] = layer
    return layers


def _difference(model: tf.keras.Model, stored: Mapping[str, Shapes], by_name: bool) -> str | None:
    """The first layer of `model` that the file lacks or holds in other shapes."""
    names = list(stored)
    for position, (key, layer) in enumerate(_weighted(model).items()):
        name = key if by_name else names[position] if position < len(names) else None
        expected = sorted(tuple(weight.shape) for weight in layer.weights)
        if name is None or name not in stored:
            return f"layer '{layer.name}' {expected}, which the file does not have"
        if stored[name] != expected:
            return f"layer '{layer.name}': {expected} against {stored[name]} in the file ('{name}')"
    return None


def _surplus(backbone: tf.keras.Model, stored: Mapping[str, Shapes], by_name: bool) -> str | None:
    """The first layer of the file that is neither in `backbone` nor its only head."""
    known = _weighted(backbone)
    left = [name for name in stored if name not in known] if by_name else list(stored)[len(known) :]
    if len(left) > 1:
        return f"'{left[0]}' {stored[left[0]]} of the file, which the model does not have"
    return None


def _load_in_order(model: tf.keras.Model, path: Path) -> None:
    """Load a file in Keras 2's own format, layer by layer."""
    with h5py.File(path, "r") as file:
        for (_, group), layer in zip(_groups(file, path), _weighted(model).values()):
            layer.set_weights([group[_text(name)][()] for name in group.attrs["weight_names"]])


def _text(name: bytes | str) -> str:
    return name.decode("utf-8") if isinstance(name, bytes) else name

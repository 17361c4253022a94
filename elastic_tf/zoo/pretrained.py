"""Reads weight files into models, with or without the head."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import h5py
import tensorflow as tf

from elastic_tf import arguments


def load(model: tf.keras.Model, backbone: tf.keras.Model, path: str | Path) -> None:
    """Load what `save_weights` or `save` of Keras 2 wrote, in HDF5.

    A file that fits the whole model is loaded whole. Otherwise it goes into the backbone, which
    shares the layers, and the head stays fresh; a head of other classes in the file is passed over.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not a file of weights, or one that does not fit; the first layer that differs
            is named. The model must not be used then.
    """
    path = Path(arguments.file("weights", path, "None, 'imagenet' or a file"))
    try:
        with h5py.File(path, "r") as file:
            stored = _in_order(file.get("model_weights", file))
    except OSError as error:
        raise ValueError(
            f"`weights` must be an HDF5 file of weights. Received: '{path}', which cannot be read "
            f"as one: {error}. Write it with model.save_weights('NAME.weights.h5')."
        ) from error
    try:
        _fill(model, stored, path, most_left=0)
    except ValueError:
        try:
            _fill(backbone, stored, path, most_left=1)
        except ValueError as error:
            raise ValueError(
                f"The weights must fit '{model.name}'. Received: '{path}'; first difference: "
                f"{error} Build the model as it was when the weights were saved (name, alpha, "
                "input size), or use other weights. Files that are not in HDF5's older format are "
                "named *.weights.h5."
            ) from error


def _in_order(root: Any) -> list[list[Any]]:
    """Weights of each layer that has any, in the older format of Keras 2; none in the newer."""
    groups = [root[name] for name in root.attrs.get("layer_names", ())]
    layers = [[group[name][()] for name in group.attrs["weight_names"]] for group in groups]
    return [weights for weights in layers if weights]


def _fill(model: tf.keras.Model, stored: list[list[Any]], path: Path, *, most_left: int) -> None:
    """Load all layers of `model`, or raise a ValueError that names the first that does not fit."""
    if not stored:
        with warnings.catch_warnings():
            # Keras 3, of files of Keras 2: it looks for some layers a second time
            warnings.filterwarnings("ignore", "Skipping nested container")
            model.load_weights(path)
        return
    layers = [layer for layer in model.layers if layer.weights]
    for layer, weights in zip(layers, stored):
        layer.set_weights(weights)
    if not 0 <= len(stored) - len(layers) <= most_left:
        raise ValueError(f"{len(stored)} layers with weights in the file, {len(layers)} built.")

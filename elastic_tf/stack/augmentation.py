"""Keras's random layers on images: drawn for a seed, and taken from where a network begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.stack.models import graph_ends, same_settings
from elastic_tf.stack.which import IS_KERAS2, variables_of

_LARGEST = 2**31 - 1  # seed of a layer
_OF_IMAGES: type = tf.keras.layers.RandomFlip.__mro__[1]  # the base of all such layers
_SIDE = 32  # pixels of an image to try, where a network takes any


def drawn_by(layers: Any) -> Callable[[Any, tf.Tensor], tf.Tensor]:
    """A function (x of one sample, seed of shape (2,)) -> x: what random layers make of an image.

    The layers are copied; theirs draw as before. Whole numbers are rounded.

    Args:
        layers: one, or some that follow each other.

    Raises:
        ValueError: one of them is no random layer of images, or of Keras 2.
    """
    chain = list(layers) if isinstance(layers, (list, tuple)) else [layers]
    if IS_KERAS2 or not (chain and all(map(_augments, chain))):
        told = ", ".join(type(layer).__name__ for layer in chain) or "none"
        raise ValueError(
            "`augment` must be a function (x, seed) -> x, or with Keras 3 random layers of images, "
            f"as tf.keras.layers.RandomFlip. Received: {told}."
        )
    chain = [type(layer).from_config(layer.get_config()) for layer in chain]
    states = [state for layer in chain for state in variables_of(layer)]

    def augmented(x: Any, seed: tf.Tensor) -> tf.Tensor:
        keys = tf.random.stateless_uniform((len(states), 2), seed, 0, _LARGEST, tf.int64)
        for state, key in zip(states, tf.unstack(keys)):
            state.assign(tf.cast(key, state.dtype))
        image = tf.cast(x, tf.float32)[None]
        for layer in chain:
            image = layer(image, training=True)
        image = tf.round(image) if x.dtype.is_integer else image
        return tf.saturate_cast(image[0], x.dtype)

    return augmented


def without_augmentation(model: Any) -> tuple[Any, list[Any]]:
    """A network without the random layers of images that it begins with, and these layers."""
    ends, found = graph_ends(model), list[Any]()
    if IS_KERAS2 or ends is None or isinstance(ends[0], (list, tuple, dict)):
        return model, found
    given, outputs = ends
    every = getattr(model, "_functional", model)._nodes_by_depth.values()
    nodes = [node for level in every for node in level]
    while True:
        takers = [one for one in nodes if any(part is given for part in one.input_tensors)]
        if len(takers) != 1 or not _augments(takers[0].operation):
            break
        (layer, (made,)) = takers[0].operation, takers[0].outputs
        if not _changes_nothing_in_use(layer, given.shape, made.shape):
            break
        found.append(layer)
        given = made
    if found:
        made = tf.keras.Model(given, outputs, name=model.name)
        same_settings(made, model)
        model = made
    return model, found


def _augments(layer: Any) -> bool:
    """Whether a layer, or all of a chain, draws changes of images at random."""
    if isinstance(layer, tf.keras.Sequential):
        return bool(layer.layers) and all(map(_augments, layer.layers))
    return isinstance(layer, _OF_IMAGES) and bool(variables_of(layer))


def _changes_nothing_in_use(layer: Any, given: Sequence[int | None], made: Any) -> bool:
    """Whether a layer gives in inference the images that it is given, told their shapes."""
    if given != made or len(given) != 4:
        return False
    size = (1, *(side or _SIDE for side in given[1:]))
    x = np.random.default_rng(0).uniform(0.0, 255.0, size).astype(np.float32)
    y = np.asarray(layer(x, training=False))
    return y.shape == x.shape and np.allclose(x, y)

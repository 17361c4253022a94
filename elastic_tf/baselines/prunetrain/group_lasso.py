"""Group lasso over the input and output channels of convolutions and dense layers.

The penalty is the sum of the norms of all groups, so that whole groups shrink towards zero. A group
is what one layer's kernel holds of one of its input channels, or of one of its output channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf.baselines.prunetrain.groups import Channels

# Under the root: the norm has no gradient at 0. As large as the square of the usual threshold: a
# group well below the threshold is no longer driven to and fro across zero.
_SQUARED_NORM_FLOOR = 1e-8


class Side(NamedTuple):
    """The groups along one axis of a kernel.

    Attributes:
        kernel: the variable.
        axis: the axis of its input or output channels.
        labels: which channel stands at each index of the axis; int, shape (size,).
    """

    kernel: tf.Variable
    axis: int
    labels: np.ndarray


def sides(network: tf.keras.Model, channels: Channels) -> list[Side]:
    """All axes that hold groups, the pinned ones too."""
    return [
        Side(layer.weights[weight], axis, labels)
        for layer in network.layers
        if layer.name in channels.sites
        for weight, axis, labels in channels.sites[layer.name].sides
    ]


def penalty(network: tf.keras.Model, channels: Channels) -> tf.Tensor:
    """Sum of the norms of all groups of channels that can be removed; every group weighs the same.

    sum over groups g of sqrt(sum(w_g^2) + 1e-8)

    The channels of the model's input and output, and those that a layer of an unknown kind sees,
    have no groups, for they stay. A depthwise convolution has none: its channels are those of its
    neighbours. Where a channel stands at several indices (a flattened feature map before a dense
    layer), these are one group.

    Args:
        network: functional model without models inside.
        channels: its channels.

    Returns:
        float32 scalar; part of the graph that is being traced, if one is.

    Source: Lym et al., PruneTrain, SC 2019; the floor under the root as in its released code.
    """
    return tf.add_n([_norms(side, channels.pinned) for side in _free(network, channels)])


def coefficient(ratio: float, loss: tf.Tensor, lasso: tf.Tensor) -> tf.Tensor:
    """The penalty's coefficient that makes it `ratio` of the whole loss.

    coefficient * lasso / (loss + coefficient * lasso) = ratio

    Args:
        ratio: share of the penalty in the sum, in (0, 1).
        loss: classification loss at the start.
        lasso: penalty at the start, without coefficient.

    Source: Lym et al., PruneTrain, SC 2019 (lasso penalty ratio).
    """
    return ratio / (1.0 - ratio) * loss / lasso


def largest_weights(network: tf.keras.Model, channels: Channels) -> np.ndarray:
    """The largest absolute weight in any group of each channel; 0 without a group.

    A channel is shared by all layers that make it and all that take it: where it is small, every
    one of their groups is.

    Returns:
        float, shape (labels,).
    """
    found = np.zeros(len(channels.pinned))
    for side in sides(network, channels):
        np.maximum(found, _largest_on(side, len(found)), out=found)
    return found


def channels_to_keep(network: tf.keras.Model, channels: Channels, threshold: float) -> np.ndarray:
    """Which channels stay when those go whose groups are all below the threshold.

    A channel goes only when the groups of all layers that make it and of all that take it agree
    (channel union): then nothing depends on it any more, whatever lies between the layers. Along
    every axis of every weight at least one channel stays, the one of the largest weight.

    Args:
        network: functional model without models inside.
        channels: its channels.
        threshold: of the largest absolute weight in a group.

    Returns:
        True at the labels that stay; bool, shape (labels,).

    Source: Lym et al., PruneTrain, SC 2019 (threshold 1e-4, channel union).
    """
    largest = largest_weights(network, channels)
    keep = channels.pinned | (largest >= threshold) | ~_has_group(network, channels)
    for site in channels.sites.values():
        for labels in site.all_labels():
            if not keep[labels].any():
                keep[labels[np.argmax(largest[labels])]] = True
    return keep


def zeroed(
    network: tf.keras.Model, channels: Channels, threshold: float, keep: np.ndarray
) -> list[tuple[tf.Variable, np.ndarray]]:
    """Kernels with every group below the threshold set to zero.

    Groups of a channel that was kept so that its layer has one are left as they are.

    Args:
        network: functional model without models inside.
        channels: its channels.
        threshold: of the largest absolute weight in a group.
        keep: from `channels_to_keep`.

    Returns:
        Each kernel that changes, with its new value.

    Source: Lym et al., PruneTrain, SC 2019.
    """
    last = keep & ~channels.pinned & (largest_weights(network, channels) < threshold)
    values: dict[int, tuple[tf.Variable, np.ndarray]] = {}
    for side in _free(network, channels):
        small = _largest_on(side, len(keep)) < threshold
        gone = (small & ~channels.pinned & ~last)[side.labels]
        if gone.any():
            _, value = values.setdefault(id(side.kernel), (side.kernel, side.kernel.numpy()))
            np.moveaxis(value, side.axis, 0)[gone] = 0.0
    return list(values.values())


def _norms(side: Side, pinned: np.ndarray) -> tf.Tensor:
    """Sum of the norms of the groups along one axis."""
    kernel, axis, labels = side
    others = [other for other in range(len(kernel.shape)) if other != axis]
    squares = tf.reduce_sum(tf.square(tf.cast(kernel, tf.float32)), axis=others)
    present, index = np.unique(labels, return_inverse=True)
    if len(present) < len(labels):
        squares = tf.math.unsorted_segment_sum(squares, index, len(present))
        labels = present
    norms = tf.sqrt(squares + _SQUARED_NORM_FLOOR)
    if pinned[labels].any():
        norms *= tf.constant(~pinned[labels], tf.float32)
    return tf.reduce_sum(norms)


def _largest_on(side: Side, count: int) -> np.ndarray:
    """The largest absolute weight in the group of each channel along one axis."""
    others = tuple(other for other in range(len(side.kernel.shape)) if other != side.axis)
    found = np.zeros(count)
    np.maximum.at(found, side.labels, np.abs(side.kernel.numpy()).max(axis=others))
    return found


def _free(network: tf.keras.Model, channels: Channels) -> Iterator[Side]:
    for side in sides(network, channels):
        if not channels.pinned[side.labels].all():
            yield side


def _has_group(network: tf.keras.Model, channels: Channels) -> np.ndarray:
    found = np.zeros(len(channels.pinned), dtype=bool)
    for _, _, labels in sides(network, channels):
        found[labels] = True
    return found

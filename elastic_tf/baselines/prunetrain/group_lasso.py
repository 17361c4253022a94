"""Group lasso over the input and output channels of convolutions and dense layers.

A group is what one layer's kernel holds of one of its input, or of one of its output channels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from elastic_tf.baselines.prunetrain.groups import Channels

# Under the root: the norm has no gradient at 0. As large as the square of the usual threshold: a
# group well below the threshold is no longer driven to and fro across zero.
_SQUARED_NORM_FLOOR = 1e-8


def sides(
    network: tf.keras.Model, channels: Channels
) -> Iterator[tuple[tf.Variable, int, np.ndarray]]:
    """All axes that hold groups, those of channels that stay too: kernel, axis and its labels."""
    for name, site in channels.sites.items():
        for axis, labels in site.groups():
            yield network.get_layer(name).weights[0], axis, labels


def penalty(network: tf.keras.Model, channels: Channels) -> tf.Tensor:
    """Sum of the norms of all groups of channels that can be removed; every group weighs the same.

    sum over groups g of sqrt(sum(w_g^2) + 1e-8)

    A depthwise convolution has no groups: its channels are those of its neighbours. Where a channel
    stands at several indices (a flattened feature map before a dense layer), these are one group.

    Returns:
        float32 scalar; part of the graph that is being traced, if one is.

    Source: Lym et al., PruneTrain, SC 2019; the floor under the root as in its released code.
    """
    norms = []
    for kernel, axis, labels in sides(network, channels):
        others = [other for other in range(len(kernel.shape)) if other != axis]
        squares = tf.reduce_sum(tf.square(tf.cast(kernel, tf.float32)), axis=others)
        squares = tf.math.unsorted_segment_sum(squares, labels, len(channels.pinned))
        squares = tf.gather(squares, np.unique(labels[~channels.pinned[labels]]))
        norms.append(tf.reduce_sum(tf.sqrt(squares + _SQUARED_NORM_FLOOR)))
    return tf.add_n(norms)


def channels_to_keep(network: tf.keras.Model, channels: Channels, threshold: float) -> np.ndarray:
    """True at the labels that stay when those go whose largest weights are below the threshold.

    A channel goes only when the groups of all layers that make it and of all that take it agree
    (channel union). Along every axis of every weight at least the channel of the largest weight
    stays.

    Source: Lym et al., PruneTrain, SC 2019 (threshold 1e-4, channel union).
    """
    largest = np.full(len(channels.pinned), -1.0)  # below 0: no group
    for kernel, axis, labels in sides(network, channels):
        others = tuple(other for other in range(len(kernel.shape)) if other != axis)
        np.maximum.at(largest, labels, np.abs(kernel.numpy()).max(axis=others))
    keep = channels.pinned | (largest >= threshold) | (largest < 0.0)
    for site in channels.sites.values():
        for labels in site.arrays():
            if not keep[labels].any():
                keep[labels[np.argmax(largest[labels])]] = True
    return keep

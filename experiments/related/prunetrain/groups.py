"""Channels of a network that can only be removed together.

Every channel between two layers carries a label; what has one label in the end is one channel to
keep or to remove, with all its weights. A convolution or dense layer gives new labels, layers known
to work on each channel alone hand theirs on, and the channels that any other layer sees stay.

A group of the lasso is what one layer's kernel holds of one of its input or output channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from elastic_tf.stack import PLAIN_NORMALISATIONS, weights
from related import graph

L = tf.keras.layers

# Layers that make channels, and the config key that counts them; the kernel is (..., in, out).
_MAKERS = {L.Conv1D: "filters", L.Conv2D: "filters", L.Conv3D: "filters", L.Dense: "units"}
# Layers that work on each channel alone; their weights have them in the last axis, kernels in the
# last but one.
_EACH = {*PLAIN_NORMALISATIONS} | {
    getattr(L, name)
    for name in "DepthwiseConv1D DepthwiseConv2D Activation ReLU LeakyReLU ELU "
    "Dropout SpatialDropout2D Add Average Maximum Minimum Multiply Subtract ZeroPadding1D "
    "ZeroPadding2D Cropping2D UpSampling2D MaxPooling1D MaxPooling2D AveragePooling1D "
    "AveragePooling2D GlobalMaxPooling1D GlobalMaxPooling2D GlobalAveragePooling1D "
    "GlobalAveragePooling2D Reshape".split()
}
_ACTIVATIONS = {
    *(None, tf.nn.relu, tf.nn.relu6, tf.nn.silu, tf.nn.gelu),
    *map(
        tf.keras.activations.get,
        "elu exponential gelu hard_sigmoid linear relu selu sigmoid softplus softsign swish "
        "tanh".split(),
    ),
}


class Site(NamedTuple):
    """The channels of one layer."""

    along: tuple[tuple[int, int, np.ndarray], ...]  # index in `layer.weights`, axis, labels
    width: tuple[str, np.ndarray] | None  # key in the layer's config, and the labels it counts

    def groups(self) -> Iterator[tuple[int, np.ndarray]]:
        """Axes of the kernel of a layer that makes channels, with their labels."""
        return ((axis, labels) for k, axis, labels in self.along if self.width and k == 0)

    def arrays(self) -> list[np.ndarray]:
        """All labels, array by array."""
        return [labels for *_, labels in self.along] + ([self.width[1]] if self.width else [])

    def changes(self, layer: Any, keep: np.ndarray) -> dict[str, Any]:
        """What changes in the layer's config where only the labels in `keep` stay."""
        if self.width is None:
            return {}
        key, labels = self.width
        left = int(keep[labels].sum())
        return {key: left if key != "target_shape" else (*layer.target_shape[:-1], left)}

    def cut(self, weight: int, value: np.ndarray, keep: np.ndarray) -> np.ndarray:
        """The part of a weight, or of what has its shape, that stays."""
        for k, axis, labels in self.along:
            if k == weight:
                value = np.compress(keep[labels], value, axis=axis)
        return value

    def relabelled(self, change: Callable[[np.ndarray], np.ndarray]) -> Site:
        """The same with other labels."""
        along = tuple((k, axis, change(labels)) for k, axis, labels in self.along)
        return Site(along, self.width and (self.width[0], change(self.width[1])))


class Channels(NamedTuple):
    """Channels of a network."""

    pinned: np.ndarray  # True at labels whose channels stay; bool, shape (labels,)
    sites: Mapping[str, Site]  # of every layer, by its name

    def relabelled(self, change: Callable[[np.ndarray], np.ndarray]) -> Channels:
        """The same with other labels at the sites."""
        return self._replace(sites={k: site.relabelled(change) for k, site in self.sites.items()})


def channel_groups(network: tf.keras.Model) -> Channels:
    """Follow the channels of a functional model from its inputs to its outputs."""
    count = 0
    equal: list[tuple[np.ndarray, np.ndarray]] = []
    pinned: list[np.ndarray] = []
    sites: dict[str, Site] = {}
    known: dict[int, np.ndarray] = {}  # labels by id of the tensor
    for node in graph.nodes(network):
        taken = [known[id(tensor)] for tensor in node.inputs]
        results = node.outputs
        for tensor in results:
            # the last axis; none where it is not fixed, or there is none but the batch
            width = int(tensor.shape[-1] or 0) if len(tensor.shape) > 1 else 0
            known[id(tensor)] = np.arange(count, count + width)
            count += width
        made = [known[id(tensor)] for tensor in results]
        site, handed_on = _followed(node, taken, made[0]) or (Site((), None), None)
        if handed_on is None:
            pinned += taken
        else:
            equal += [(labels, made[0]) for labels in handed_on]
        if handed_on is None or getattr(node.layer, "activation", None) not in _ACTIVATIONS:
            pinned += made
        # a layer that is called again has one set of channels
        equal += zip(sites.setdefault(node.layer.name, site).arrays(), site.arrays())
    pinned += [known[id(tensor)] for tensor in tf.nest.flatten(network.outputs)]

    one, other = np.concatenate([np.zeros((2, 0), int), *map(np.stack, equal)], axis=1)
    _, root = connected_components(coo_array((np.ones(len(one)), (one, other)), (count, count)))
    stays = np.zeros(root.max() + 1, bool)
    stays[root[np.concatenate(pinned)]] = True
    return Channels(stays, sites).relabelled(root.__getitem__)


def _followed(
    node: Any, taken: list[np.ndarray], made: np.ndarray
) -> tuple[Site, list[np.ndarray]] | None:
    """Where a layer has its channels, and what it hands on as `made`; None if it is not known."""
    layer, kind = node.layer, type(node.layer)
    if not (taken and made.size and all(labels.size for labels in taken)):
        return None
    first, last_axes = taken[0], {-1, len(node.inputs[0].shape) - 1}
    is_last = {*tf.nest.flatten(getattr(layer, "axis", -1))} <= last_axes
    if not is_last or getattr(layer, "data_format", "channels_last") != "channels_last":
        return None
    if kind in _MAKERS and getattr(layer, "groups", 1) == 1:
        rank = len(layer.kernel.shape)
        bias = ((1, 0, made),) if layer.use_bias else ()
        along = ((0, rank - 2, first), (0, rank - 1, made), *bias)
        return Site(along, (_MAKERS[kind], made)), []
    if kind in _EACH and all(labels.size == made.size for labels in taken):
        ranks = [len(weight.shape) for weight in layer.weights]
        along = tuple((k, max(rank - 2, 0), first) for k, rank in enumerate(ranks))
        return Site(along, ("target_shape", first) if kind is L.Reshape else None), taken
    if kind is L.Concatenate:
        return Site((), None), [np.concatenate(taken)]
    if kind is L.Flatten:
        return Site((), None), [np.tile(first, made.size // first.size)]
    return None


def sides(
    network: tf.keras.Model, channels: Channels
) -> Iterator[tuple[tf.Variable, int, np.ndarray]]:
    """All axes that hold groups, those of channels that stay too: kernel, axis and its labels."""
    for name, site in channels.sites.items():
        for axis, labels in site.groups():
            yield weights(network.get_layer(name))[0], axis, labels


def penalty(network: tf.keras.Model, channels: Channels) -> tf.Tensor:
    """Sum of the norms of all groups of channels that can be removed; every group weighs the same.

    sum over groups g of sqrt(sum(w_g^2) + 1e-8)

    A depthwise convolution has no groups: its channels are those of its neighbours. Where a channel
    stands at several indices (a flattened feature map before a dense layer), these are one group.

    Source: Lym et al., PruneTrain, SC 2019; the floor under the root as in its released code.
    """
    norms = []
    for kernel, axis, labels in sides(network, channels):
        others = [other for other in range(len(kernel.shape)) if other != axis]
        squares = tf.reduce_sum(tf.square(tf.cast(kernel, tf.float32)), axis=others)
        squares = tf.math.unsorted_segment_sum(squares, labels, len(channels.pinned))
        squares = tf.gather(squares, np.unique(labels[~channels.pinned[labels]]))
        # The norm has no gradient at 0. As large as the square of the usual threshold: a group well
        # below it is no longer driven to and fro across zero.
        norms.append(tf.reduce_sum(tf.sqrt(squares + 1e-8)))
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

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import CLASSES, IMAGE, L
from prunable import branches, is_free, labels_of, residual
from related.prunetrain import groups
from related.prunetrain.groups import channel_groups

from elastic_tf.stack import raw

pytestmark = pytest.mark.hours  # a reproduction, apart from the package


def between(*middle, filters=4):
    """Two convolutions with something between them, and a head."""
    inputs = L.Input(IMAGE)
    x = L.Conv2D(filters, 3, padding="same", name="before")(inputs)
    for layer in middle:
        x = layer(x)
    x = L.Conv2D(3, 3, padding="same", name="after")(x)
    return tf.keras.Model(inputs, L.Dense(CLASSES, name="head")(L.GlobalMaxPooling2D()(x)))


class Mixing(L.Layer):
    """A kind of layer that nobody knows."""

    def call(self, inputs):
        return tf.reverse(inputs, [-1])


def test_layers_of_a_residual_trunk_share_its_channels():
    channels = channel_groups(residual())
    labels = {name: site.width[1] for name, site in channels.sites.items() if site.width}
    for name in ("one_b", "project"):
        np.testing.assert_array_equal(labels[name], labels["stem"])
    for name in ("one_a", "expand"):
        assert not set(labels[name]) & set(labels["stem"])
    np.testing.assert_array_equal(labels["two"], labels["shortcut"])
    # a depthwise convolution shares the channels around it, and has no groups
    ((_, axis, along),) = channels.sites["depthwise"].along
    assert axis == 2 and not [*channels.sites["depthwise"].groups()]
    np.testing.assert_array_equal(along, labels["expand"])
    # the channels of the input and the output stay, no others that a layer has
    (_, image), _ = channels.sites["stem"].groups()
    held = np.unique(np.concatenate([*labels.values(), image]))
    assert {*held[channels.pinned[held]]} == {*image, *labels["head"]}


def test_channels_are_followed_through_concatenation_gates_and_pixels():
    channels = channel_groups(branches())
    labels = {name: site.width[1] for name, site in channels.sites.items() if site.width}
    joined = np.concatenate([labels["side"], labels["shared"]])
    np.testing.assert_array_equal(channels.sites["mix"].arrays()[0], joined)
    np.testing.assert_array_equal(labels["gate"], labels["stem"])
    np.testing.assert_array_equal(channels.sites["hidden"].arrays()[0], np.tile(labels["mix"], 9))
    # called twice: what it takes is what it makes, and what the stem makes
    np.testing.assert_array_equal(channels.sites["shared"].arrays()[0], labels["shared"])
    assert not channels.pinned[labels["stem"]].any()


@pytest.mark.parametrize(
    "layer",
    [
        Mixing(),
        L.LayerNormalization(),
        L.Activation("softmax"),
        L.Conv2D(4, 1, groups=2),
        L.BatchNormalization(axis=1),
        L.Reshape((6, 12, 2)),
        tf.keras.Sequential([L.Conv2D(4, 1)]),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_channels_before_a_layer_that_mixes_them_stay(layer):
    assert not is_free(between(layer))


def test_penalty_equals_the_sum_over_groups():
    network = between(L.DepthwiseConv2D(3, padding="same"), L.BatchNormalization(), L.ReLU())
    names = ("before", "after", "head")
    before, after, head = (network.get_layer(name).kernel.numpy() for name in names)
    norms = [np.linalg.norm(before[..., c]) for c in range(4)]  # the image's channels have none
    norms += [np.linalg.norm(after[:, :, c]) for c in range(4)]
    norms += [np.linalg.norm(after[..., c]) for c in range(3)]
    norms += [np.linalg.norm(head[c]) for c in range(3)]  # the classes have none
    penalty = groups.penalty(network, channel_groups(network))
    np.testing.assert_allclose(penalty, np.sum(norms), rtol=1e-6)


@pytest.mark.parametrize("kernel, axis", [("stem", 3), ("two", 2)])
def test_a_channel_of_the_trunk_stays_as_long_as_one_layer_needs_it(kernel, axis):
    network = residual()
    trunk = labels_of(network, "stem")
    channels = channel_groups(network)
    for variable, along, labels in groups.sides(network, channels):
        if variable is not raw(network.get_layer(kernel).kernel) or along != axis:
            value = variable.numpy()
            np.moveaxis(value, along, 0)[labels == trunk[2]] = 0.0
            variable.assign(value)
    assert groups.channels_to_keep(network, channels, 1e-4)[trunk[2]]
    np.moveaxis(value := network.get_layer(kernel).kernel.numpy(), axis, 0)[2] = 1e-5
    network.get_layer(kernel).kernel.assign(value)
    assert not groups.channels_to_keep(network, channels, 1e-4)[trunk[2]]

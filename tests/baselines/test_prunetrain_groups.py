from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import CLASSES, IMAGE, L
from prunable import branches, channels_of, labels_of, residual, shrink

from elastic_tf.baselines.prunetrain import group_lasso
from elastic_tf.zoo import models


def between(*middle, filters=4):
    """Two convolutions with something between them, and a head."""
    inputs = L.Input(IMAGE)
    x = L.Conv2D(filters, 3, padding="same", name="before")(inputs)
    for layer in middle:
        x = layer(x)
    x = L.Conv2D(3, 3, padding="same", name="after")(x)
    return tf.keras.Model(inputs, L.Dense(CLASSES, name="head")(L.GlobalMaxPooling2D()(x)))


def is_free(network, layer="before"):
    return not channels_of(network).pinned[labels_of(network, layer)].any()


class Mixing(L.Layer):
    """A kind of layer that nobody knows."""

    def call(self, inputs):
        return tf.reverse(inputs, [-1])


def test_layers_of_a_residual_trunk_share_its_channels():
    network = residual()
    trunk = labels_of(network, "stem")
    for name in ("one_b", "project"):
        np.testing.assert_array_equal(labels_of(network, name), trunk)
    for name in ("one_a", "expand"):
        assert not set(labels_of(network, name)) & set(trunk)
    np.testing.assert_array_equal(labels_of(network, "two"), labels_of(network, "shortcut"))


def test_a_depthwise_convolution_shares_the_channels_around_it():
    channels = channels_of(residual())
    (_, axis, labels), *others = channels.sites["depthwise"].axes
    assert axis == 2 and not others
    np.testing.assert_array_equal(labels, labels_of(residual(), "expand"))
    assert not channels.sites["depthwise"].sides


def test_concatenation_lines_channels_up():
    network = branches()
    (_, axis, labels), *_ = channels_of(network).sites["mix"].sides
    joined = [labels_of(network, name) for name in ("separable", "back", "stem")]
    assert axis == 2
    np.testing.assert_array_equal(labels, np.concatenate(joined))


def test_flattened_channels_stand_at_every_pixel():
    network = branches()
    (_, _, labels), *_ = channels_of(network).sites["hidden"].sides
    np.testing.assert_array_equal(labels, np.tile(labels_of(network, "mix"), 9))


def test_channels_of_inputs_and_outputs_stay():
    network = residual()
    channels = channels_of(network)
    (_, _, image), *_ = channels.sites["stem"].sides
    assert channels.pinned[image].all()
    assert channels.pinned[labels_of(network, "head")].all()
    assert is_free(network, "stem")


@pytest.mark.parametrize(
    "layer",
    [
        Mixing(),
        L.LayerNormalization(),
        L.Softmax(),
        L.Activation("softmax"),
        L.Conv2D(4, 1, groups=2),
        L.BatchNormalization(axis=1),
        L.Permute((2, 1, 3)),
        L.Reshape((6, 12, 2)),
        L.Rescaling([1.0, 2.0, 3.0, 4.0]),
        L.Dropout(0.5, noise_shape=(None, 1, 1, 4)),
        L.ReLU(activity_regularizer="l2"),
        L.Lambda(lambda x: tf.cumsum(x, axis=-1)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_channels_before_what_is_not_known_stay(layer):
    assert not is_free(between(layer))
    assert is_free(between(L.ReLU()))


def test_channels_of_a_convolution_that_mixes_its_outputs_stay():
    inputs = L.Input(IMAGE)
    x = L.Conv2D(4, 3, activation="softmax", name="before")(inputs)
    x = L.Conv2D(3, 3, name="after")(x)
    network = tf.keras.Model(inputs, L.Dense(CLASSES)(L.Flatten()(x)))
    assert not is_free(network)
    assert is_free(network, "after")


def test_channels_multiplied_by_one_channel_stay():
    inputs = L.Input(IMAGE)
    x = L.Conv2D(4, 3, name="before")(inputs)
    gate = L.Conv2D(1, 1, name="gate")(x)
    network = tf.keras.Model(inputs, L.Dense(CLASSES)(L.Flatten()(L.Multiply()([x, gate]))))
    assert not is_free(network) and not is_free(network, "gate")


def test_a_layer_known_in_one_call_only_keeps_its_channels():
    inputs = L.Input(IMAGE)
    conv = L.Conv2D(4, 3, padding="same", name="before")
    x = conv(L.Conv2D(4, 1, name="first")(inputs))
    x = L.Add()([x, conv(Mixing()(x))])
    network = tf.keras.Model(inputs, L.Dense(CLASSES)(L.GlobalMaxPooling2D()(x)))
    assert not is_free(network)


def test_penalty_equals_the_sum_over_groups():
    network = between(L.DepthwiseConv2D(3, padding="same"), L.BatchNormalization(), L.ReLU())
    before, after, head = (network.get_layer(name).kernel.numpy() for name in GROUPS)
    norms = [np.linalg.norm(before[..., c]) for c in range(4)]  # the image's channels have none
    norms += [np.linalg.norm(after[:, :, c]) for c in range(4)]
    norms += [np.linalg.norm(after[..., c]) for c in range(3)]
    norms += [np.linalg.norm(head[c]) for c in range(3)]  # the classes have none
    penalty = group_lasso.penalty(network, channels_of(network))
    np.testing.assert_allclose(penalty, np.sum(norms), rtol=1e-6)


GROUPS = ("before", "after", "head")


def test_a_flattened_channel_is_one_group():
    inputs = L.Input((2, 2, 3))
    x = L.Flatten()(L.Conv2D(2, 1, name="conv")(inputs))
    network = tf.keras.Model(inputs, L.Dense(CLASSES, name="head")(x))
    conv, head = (network.get_layer(name).kernel.numpy() for name in ("conv", "head"))
    norms = [np.linalg.norm(conv[..., c]) for c in range(2)]
    norms += [np.linalg.norm(head[c::2]) for c in range(2)]
    penalty = group_lasso.penalty(network, channels_of(network))
    np.testing.assert_allclose(penalty, np.sum(norms), rtol=1e-6)


def test_penalty_has_a_gradient_at_zero():
    network = residual()
    shrink(network, 1.0)
    with tf.GradientTape() as tape:
        penalty = group_lasso.penalty(network, channels_of(network))
    kernel = network.get_layer("one_a").kernel
    np.testing.assert_array_equal(tape.gradient(penalty, kernel), np.zeros(kernel.shape))


def test_coefficient_gives_the_ratio():
    coefficient = group_lasso.coefficient(0.2, tf.constant(2.0), tf.constant(50.0))
    np.testing.assert_allclose(coefficient * 50.0 / (2.0 + coefficient * 50.0), 0.2, rtol=1e-6)


def test_channels_go_whose_groups_are_all_small():
    network = residual()
    small = shrink(network, 0.4, factor=1e-6)
    np.testing.assert_array_equal(
        group_lasso.channels_to_keep(network, channels_of(network), 1e-4), ~small
    )


@pytest.mark.parametrize("kernel, axis", [("stem", 3), ("one_a", 2), ("project", 3), ("two", 2)])
def test_a_channel_of_the_trunk_stays_as_long_as_one_layer_needs_it(kernel, axis):
    network = residual()
    trunk = labels_of(network, "stem")
    channels = channels_of(network)
    for variable, along, labels in group_lasso.sides(network, channels):
        if variable is not network.get_layer(kernel).kernel or along != axis:
            value = variable.numpy()
            np.moveaxis(value, along, 0)[labels == trunk[2]] = 0.0
            variable.assign(value)
    assert group_lasso.channels_to_keep(network, channels, 1e-4)[trunk[2]]
    np.moveaxis(value := network.get_layer(kernel).kernel.numpy(), axis, 0)[2] = 1e-5
    network.get_layer(kernel).kernel.assign(value)
    assert not group_lasso.channels_to_keep(network, channels, 1e-4)[trunk[2]]


def test_at_least_one_channel_is_left_everywhere():
    network = branches()
    shrink(network, 1.0, factor=1e-9)
    channels = channels_of(network)
    keep = group_lasso.channels_to_keep(network, channels, 1e-4)
    for site in channels.sites.values():
        for labels in site.all_labels():
            assert keep[labels].any()


def test_groups_below_the_threshold_become_zero_where_their_channel_stays():
    network = residual()
    kernel = network.get_layer("one_a").kernel
    value = kernel.numpy()
    value[..., 1] = 5e-5
    value[..., 2] = 2e-4
    kernel.assign(value)
    channels = channels_of(network)
    keep = group_lasso.channels_to_keep(network, channels, 1e-4)
    assert keep.all()
    ((changed, zeroed),) = group_lasso.zeroed(network, channels, 1e-4, keep)
    assert changed is kernel
    value[..., 1] = 0.0
    np.testing.assert_array_equal(zeroed, value)


def test_the_last_channel_of_a_layer_is_not_set_to_zero():
    network = residual()
    small = shrink(network, 1.0, factor=1e-6)
    channels = channels_of(network)
    keep = group_lasso.channels_to_keep(network, channels, 1e-4)
    values = {
        id(variable): value for variable, value in group_lasso.zeroed(network, channels, 1e-4, keep)
    }
    kept = np.flatnonzero(keep[labels_of(network, "one_a")])
    assert small.any() and len(kept) == 1
    assert values[id(network.get_layer("one_a").kernel)][..., kept[0]].any()


def test_all_channels_of_the_zoos_mobilenet_are_known():
    network = models.build("mobilenet", classes=CLASSES, input_size=32, alpha=0.25)
    channels = channels_of(network)
    stays = {
        layer
        for layer, site in channels.sites.items()
        if site.sides and channels.pinned[site.width[1]].any()
    }
    assert stays == {"head"}

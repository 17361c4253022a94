import few_images
import numpy as np
import pytest
import tensorflow as tf

import elastic_tf as et
from elastic_tf.methods.protonet import ChannelFisher

L = tf.keras.layers


def loss(features, y):
    return tf.reduce_sum((features - y[:, None]) ** 2, -1)


def by_definition(front, back, x, y):
    """Deltas where `front` ends, sample by sample."""
    found = 0.0
    for n in range(len(x)):
        with tf.GradientTape() as tape:
            a = front(x[n : n + 1], training=False)
            tape.watch(a)
            value = loss(back(a, training=False), y[n : n + 1])
        g = tape.gradient(value, a)
        found += tf.reduce_sum(a * g, axis=(0, 1, 2)).numpy() ** 2
    return found / (2 * len(x))


def parts(model, name):
    """The model up to a layer, and after it."""
    middle = model.get_layer(name).output
    inputs = x = L.Input(middle.shape[1:])
    at = model.layers.index(model.get_layer(name))
    for layer in model.layers[at + 1 :]:
        x = layer(x)
    return tf.keras.Model(model.input, middle), tf.keras.Model(inputs, x)


def test_deltas_are_those_of_the_definition():
    network = few_images.network()
    x = few_images.images()[0][:10]
    y = np.linspace(0.0, 1.0, 10, dtype=np.float32)
    model = et.ElasticModel.from_model(network)
    found = ChannelFisher(model, loss)(x, y, batch_size=4)
    of_kind = [layer.name for layer in network.layers if isinstance(layer, L.ReLU)]
    kernels = [k for k, tensor in enumerate(model.tensors) if tensor.shape.rank == 4]
    assert list(found) == kernels
    for k, name in ((kernels[0], of_kind[0]), (kernels[-1], of_kind[-1])):
        np.testing.assert_allclose(found[k], by_definition(*parts(network, name), x, y), rtol=1e-4)


def test_a_depthwise_channel_sums_what_is_made_of_it():
    inputs = L.Input((4, 4, 3))
    x = L.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False)(inputs)
    model = et.ElasticModel(inputs, L.GlobalAveragePooling2D()(x))
    images = np.random.default_rng(0).normal(size=(1, 4, 4, 3)).astype(np.float32)
    found = ChannelFisher(model, loss)(images, np.zeros(1, np.float32))[0]
    a = model(images).numpy()[0]  # the loss is the sum of squares: a * g = 2 a^2
    np.testing.assert_allclose(found, (2 * a**2).reshape(3, 2).sum(1) ** 2 / 2, rtol=1e-4)


def test_only_some_kernels_are_looked_at():
    model = et.ElasticModel.from_model(few_images.network())
    x, y = few_images.images()[0][:4], np.zeros(4, np.float32)
    last = max(k for k, tensor in enumerate(model.tensors) if tensor.shape.rank == 4)
    assert list(ChannelFisher(model, loss, (last,))(x, y)) == [last]


def test_what_is_not_finite_is_refused():
    model = et.ElasticModel.from_model(few_images.network())
    x, y = few_images.images()[0][:2], np.full(2, np.inf, np.float32)
    with pytest.raises(ValueError, match=r"nan.*first"):
        ChannelFisher(model, loss)(x, y)

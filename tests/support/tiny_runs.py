"""Command lines of the smallest runs, and a network for them."""

import contextlib

import pytest
import tensorflow as tf

from elastic_tf.app import zoo

L = tf.keras.layers
NETWORK = "--model digits_resnet --input-size 16 --batch-size 4 "
TRAINING = NETWORK + (
    "--method elastic_loss --weights none --learning-rate 1e-3 --epochs 2 --validation 0.25 "
    "--quiet "
)


def backbone(x, *_):
    """Two convolutions with batch normalisation: 8 tensors with the head."""
    for _ in range(2):
        x = L.Conv2D(4, 3, strides=2, use_bias=False)(x)
        x = L.ReLU()(L.BatchNormalization()(x))
    return x


def residual(x, *_):
    """A convolution and a block around another."""
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(4, 3, strides=2, use_bias=False)(x)))
    y = L.BatchNormalization()(L.Conv2D(4, 3, padding="same", use_bias=False)(x))
    return L.ReLU()(L.Add()([x, y]))


@contextlib.contextmanager
def smaller(backbone=backbone):
    """Makes the smallest network of the zoo smaller still."""
    with pytest.MonkeyPatch.context() as patch:
        whole = zoo.ARCHITECTURES["digits_resnet"]
        patch.setitem(zoo.ARCHITECTURES, "digits_resnet", whole._replace(backbone=backbone))
        yield

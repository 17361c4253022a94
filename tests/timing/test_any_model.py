"""The time model on models of every kind: nothing of it knows a layer's name."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from networks import L, half_precision

from elastic_tf.app import zoo
from elastic_tf.model import ElasticModel
from elastic_tf.timing.profiler import profile_model


def shared_layer() -> tf.keras.Model:
    inputs = L.Input((8,))
    twice = L.Dense(8)
    return tf.keras.Model(inputs, twice(L.Dense(8, activation="relu")(twice(inputs))))


class Loop(tf.keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.steps = [L.Dense(8, activation="relu") for _ in range(3)]

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        for step in self.steps:
            inputs = step(inputs) + inputs
        return inputs


def python_loop() -> tf.keras.Model:
    model = Loop()
    model(np.zeros((1, 8), np.float32))
    return model


def convolutions() -> tf.keras.Model:
    inputs = L.Input((12, 12, 4))
    x = L.LayerNormalization()(L.SeparableConv2D(8, 3)(inputs))
    x = L.Dropout(0.3)(L.GroupNormalization(4)(L.Conv2D(8, 3, groups=2)(x)))
    return tf.keras.Model(inputs, L.GlobalAveragePooling2D()(L.Conv2DTranspose(4, 3)(x)))


def recurrent() -> tf.keras.Model:
    inputs = L.Input((6, 4))
    return tf.keras.Model(inputs, L.Dense(3)(L.LSTM(5, recurrent_dropout=0.2)(inputs)))


def attention() -> tf.keras.Model:
    inputs = L.Input((6, 4))
    x = L.MultiHeadAttention(2, 4)(inputs, inputs)
    return tf.keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling1D()(L.Dropout(0.2)(x))))


def nested() -> tf.keras.Model:
    inner = tf.keras.Sequential([L.Conv2D(4, 3), L.ReLU()])
    outer = tf.keras.Sequential([L.Conv2D(4, 3), L.BatchNormalization(), inner])
    inputs = L.Input((8, 8, 3))
    return tf.keras.Model(inputs, L.GlobalAveragePooling2D()(outer(inputs)))


def application(name: str, size: int = 32) -> tf.keras.Model:
    build = getattr(tf.keras.applications, name)
    return build(include_top=False, weights=None, pooling="avg", input_shape=(size, size, 3))


def embedding() -> tf.keras.Model:
    inputs = L.Input((6,), dtype="int32")
    return tf.keras.Model(inputs, L.Dense(2)(L.Flatten()(L.Embedding(9, 3)(inputs))))


SMALL = {
    shared_layer: 4,
    python_loop: 6,
    convolutions: 11,
    recurrent: 5,
    attention: 10,
    nested: 6,
    embedding: 3,
}
LARGE = {"ResNet50": 212, "MobileNetV3Small": 138, "EfficientNetV2B0": 241, "DenseNet121": 362}


def check(model: tf.keras.Model, count: int) -> None:
    """Every tensor has a time of its own, and nearly all backward time belongs to some."""
    elastic = ElasticModel.from_model(model)
    elastic.compile("sgd", "mse")
    shape = (4, *(elastic.input_shape[1:] if hasattr(model, "input_shape") else (8,)))
    x = np.random.default_rng(0).uniform(0, 2, shape).astype(np.float32)
    y = np.zeros(elastic(x).shape, np.float32)
    profile = profile_model(elastic, x, y, repeats=1)
    assert profile.count == len(elastic.tensors) == count
    missing = [elastic.tensors[k].name for k in np.flatnonzero(profile.t_dw == 0)]
    assert missing == []
    assert profile.share_attributed >= 0.98


@pytest.mark.parametrize("build", SMALL)
def test_every_kind_of_model_is_profiled(build):
    check(build(), SMALL[build])


@pytest.mark.hours
@pytest.mark.parametrize("name", LARGE)
def test_applications_of_keras_are_profiled(name):
    check(application(name), LARGE[name])


@pytest.mark.hours
def test_vision_transformer_is_profiled():
    check(zoo.build("vit_ti16", classes=3, input_size=32), 200)


def test_mixed_precision_is_profiled():
    with half_precision():
        check(nested(), 6)

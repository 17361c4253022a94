"""Networks of a few dense layers, each with its own way from input to head, and data for them."""

import numpy as np
import tensorflow as tf

import elastic_tf as et

L = tf.keras.layers
BATCH, SAMPLES = 4, 16


def chain():
    inputs = L.Input((8,))
    x = L.Dense(6, "relu")(inputs)
    x = L.BatchNormalization()(x)
    x = L.Dense(6, "relu")(x)
    return tf.keras.Model(inputs, L.Dense(3)(x))


def skips_to_the_head():
    inputs = L.Input((8,))
    x = L.Dense(4, "relu")(L.Dense(4, "relu")(inputs))
    return tf.keras.Model(inputs, L.Dense(3)(L.Concatenate()([x, inputs])))


def with_dropout():
    return tf.keras.Sequential(
        [L.Input((8,)), L.Dense(6, "relu"), L.Dropout(0.5), L.Dense(6), L.Dense(3)]
    )


def regularised():
    return tf.keras.Sequential(
        [
            L.Input((8,)),
            L.Dense(6, "relu", activity_regularizer="l2"),
            L.Dense(6, kernel_regularizer="l2"),
            L.Dense(3),
        ]
    )


class Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = L.Dense(6, "relu"), L.Dense(6, "relu"), L.Dense(3)

    def call(self, inputs):
        return self.last(self.second(self.first(inputs)))


def subclassed():
    model = Subclassed()
    model(np.zeros((1, 8), np.float32))
    return model


def elastic(build):
    tf.keras.utils.set_random_seed(0)
    model = et.ElasticModel.from_model(build())
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    et.optimizers.build(model.optimizer, model.trainable_variables)
    return model


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(SAMPLES, 8)).astype(np.float32), rng.integers(0, 3, SAMPLES)

"""Models to evaluate, and all that an evaluation must leave as it was."""

import random

import numpy as np
import tensorflow as tf
from networks import CLASSES, IMAGE, MORE_OPTIMIZERS, L, crossentropy, images, network

from elastic_tf import stack
from elastic_tf.choose import importance
from elastic_tf.model import ElasticModel
from elastic_tf.train import optimizers

READINGS = ("before", "after", "other")
FUNCTIONS = {
    "loss_decrease": importance.loss_decrease,
    "gradient_magnitude": importance.gradient_magnitude,
    "weight_magnitude": importance.weight_magnitude,
    "own": lambda model, x, y: np.arange(len(model.tensors), dtype=np.float64),
}


def elastic(optimizer: str = "sgd", *, fitted: bool = True) -> ElasticModel:
    """A compiled network with batch normalisation, trained for three steps."""
    model = ElasticModel.from_model(network())
    model.compile(MORE_OPTIMIZERS[optimizer](), crossentropy(), metrics=["accuracy"])
    if fitted:
        model.fit(*images(), batch_size=8, verbose=0)
    return model


def noisy() -> ElasticModel:
    """A network with augmentation and two kinds of dropout, one with a seed of its own."""
    tf.random.set_seed(7)
    inputs = L.Input(IMAGE)
    x = L.RandomFlip()(inputs)
    x = L.Conv2D(4, 3)(x)
    x = L.BatchNormalization()(x)
    x = L.Dropout(0.5, seed=3)(x)
    x = L.GaussianNoise(0.5)(L.Flatten()(x))
    model = ElasticModel(inputs, L.Dense(CLASSES)(L.Dropout(0.3)(x)))
    model.compile(MORE_OPTIMIZERS["sgd"](), crossentropy(), metrics=["accuracy"])
    return model


def linear(learning_rate: float = 0.05) -> ElasticModel:
    """Linear regression: the loss is quadratic in the weights."""
    inputs = L.Input((5,))
    model = ElasticModel(inputs, L.Dense(3, kernel_initializer="ones")(inputs))
    model.compile(tf.keras.optimizers.SGD(learning_rate), "mse")
    return model


def points(count: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 5)), rng.normal(size=(count, 3))


def state(model: ElasticModel) -> list[np.ndarray]:
    """Everything that training changes, in the model, the optimizer, the metrics, the layers."""
    held = [*stack.variables_of(model), *optimizers.state(model.optimizer)]
    held += [variable for metric in model.metrics for variable in stack.variables_of(metric)]
    generators = [
        layer._random_generator for layer in model.layers if hasattr(layer, "_random_generator")
    ]
    held += [g._generator.state for g in generators if g._generator is not None]
    values = [variable.numpy() for variable in held]
    values += [np.array(str(g._seed)) for g in generators]
    return [*values, np.array(random.getstate()[1]), np.random.get_state()[1]]


def same(one: list[np.ndarray], two: list[np.ndarray]) -> bool:
    return len(one) == len(two) and all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(one, two)
    )

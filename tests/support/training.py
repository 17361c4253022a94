"""Models to train in the tests of the engine, ours and plain Keras's."""

import numpy as np
import tensorflow as tf
from networks import CLASSES, MORE_OPTIMIZERS, L, crossentropy, fit, network, shared_state, values

from elastic_tf import stack
from elastic_tf.model import ElasticModel
from elastic_tf.train import optimizers
from elastic_tf.train.samples import Samples

UPPER = ("conv2", "head")  # tensors of these layers; both batch normalisations are left out


class Subclassed(tf.keras.Model):
    """The same kind of network with a `call` of its own."""

    def __init__(self):
        super().__init__()
        self.conv = L.Conv2D(3, 3, name="conv")
        self.norm = L.BatchNormalization(name="norm")
        self.flat = L.Flatten()
        self.head = L.Dense(CLASSES, name="head")

    def call(self, inputs, training=None):
        return self.head(self.flat(self.norm(self.conv(inputs), training=training)))


class OwnTrainStep(Subclassed):
    def train_step(self, data):
        return super().train_step(data)


class Switch(tf.keras.callbacks.Callback):
    """Sets the next of `masks` at the start of each epoch, or of each batch."""

    def __init__(self, *masks, batches=False):
        super().__init__()

        def switch(number, logs=None):
            self.model.set_mask(masks[number % len(masks)])

        setattr(self, "on_train_batch_begin" if batches else "on_epoch_begin", switch)


def elastic(*, kind="sgd", source=network, loss=crossentropy, **options) -> ElasticModel:
    tf.keras.utils.set_random_seed(0)
    model = ElasticModel.from_model(source())
    model.compile(MORE_OPTIMIZERS[kind](), loss(), **options)
    return model


def plain(*, kind="sgd", source=network, loss=crossentropy, **options) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(0)
    model = source()
    model.compile(MORE_OPTIMIZERS[kind](), loss(), **options)
    if model.built and hasattr(model.optimizer, "build"):  # else traced twice, for the slots
        model.optimizer.build(model.trainable_variables)
    return model


def assert_trained_alike(fitted=(), **options) -> None:
    """Ours and plain Keras's have the same history and the same bits after a `fit`."""
    ours, theirs = elastic(**options), plain(**options)
    assert fit(ours, **dict(fitted)) == fit(theirs, **dict(fitted))
    assert everything(ours) == everything(theirs)


def assert_kept_alike(make, data, *, batch_size=4, **tolerance) -> None:
    """A model trains on what is kept of samples as in whole steps."""
    weights = []
    for memory in (1 << 30, 0):
        model = make()
        samples = Samples(*data, batch_size=batch_size, memory=memory)
        model.fit(samples, epochs=3, verbose=0)
        weights.append(model.get_weights())
    for kept, whole in zip(*weights):
        np.testing.assert_allclose(kept, whole, **{"rtol": 0.0, **tolerance})


def everything(model) -> list[bytes]:
    return values(stack.weights(model) + shared_state(model.optimizer))


def loss_scale(optimizer) -> tf.Variable:
    """The variable of an optimizer that scales the loss, which is built."""
    names = "current_loss_scale", "dynamic_scale"
    (found,) = (v for v in optimizers.state(optimizer) if any(n in v.name for n in names))
    return found


def read_again(model, fresh, path: str):
    """The model out of a file, or its weights and optimizer in a `fresh` one, by the ending."""
    if path.endswith((".keras", ".h5")) and not path.endswith(".weights.h5"):
        model.save(path)
        return tf.keras.models.load_model(path)
    again = fresh()
    optimizers.build(again.optimizer, again.trainable_variables)
    if path.endswith("checkpoint"):
        tf.train.Checkpoint(model=model).write(path)
        tf.train.Checkpoint(model=again).read(path).assert_existing_objects_matched()
    else:
        model.save_weights(path)
        again.load_weights(path)
    return again

"""A small model, its table of times and a callback for them."""

import numpy as np
import tensorflow as tf
from networks import chain, crossentropy, images

from elastic_tf.callback import ElasticCallback
from elastic_tf.model import ElasticModel
from elastic_tf.timing.profile import TimingProfile


def elastic(source=chain) -> ElasticModel:
    model = ElasticModel.from_model(source())
    model.compile(tf.keras.optimizers.SGD(0.01, momentum=0.9), crossentropy())
    return model


def table(count: int = 10) -> TimingProfile:
    """Every tensor costs 1 to update and 1 to pass by; the forward pass costs 10."""
    return TimingProfile.from_chain(t_dw=np.ones(count), t_dy=np.ones(count), t_forward=10.0)


def dataset(batches: int = 4) -> tf.data.Dataset:
    x, y = images()
    return tf.data.Dataset.from_tensor_slices((x, y)).take(4 * batches).batch(4)


def favour(*indices: int):
    """An importance function by which these tensors matter and no other."""
    return lambda model, x, y: np.isin(np.arange(len(model.tensors)), indices).astype(float)


def callback(**options) -> ElasticCallback:
    given = {"profile": table(), "rho": 0.6, "interval": 2, "probe": dataset(), **options}
    return ElasticCallback(**given)


def fit(model: ElasticModel, *callbacks, epochs: int = 5):
    return model.fit(dataset(), epochs=epochs, verbose=0, callbacks=list(callbacks))

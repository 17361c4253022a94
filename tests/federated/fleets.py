"""A fleet of four devices in this process, and a tiny network for it."""

import functools

import numpy as np
import tensorflow as tf
from flower_here import Here
from flwr.clientapp import ClientApp

import elastic_tf as et
from elastic_tf import federated

L = tf.keras.layers
DEVICES = 4


@functools.cache
def network(loss="classes", units=3):
    """The same weights on every device; one for all tests, for rounds leave it as it was."""
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((8,))
    hidden = L.Dense(16, "relu", name="first")(inputs)
    hidden = L.Dense(12, "relu", name="second")(hidden)
    model = et.ElasticModel(inputs, L.Dense(units, name="head")(hidden))
    of_classes = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(et.optimizers.adam(1e-2), of_classes if loss == "classes" else loss)
    return model


def pictures(device, count=24):
    rng = np.random.default_rng(device)
    y = rng.integers(0, 3, count)
    centres = 1.5 * np.random.default_rng(100).normal(size=(3, 8))
    return (centres[y] + rng.normal(size=(count, 8))).astype(np.float32), y


# From the last tensor to the first: a step of all takes 10 s, of the last tensor alone 2.5.
PROFILE = et.TimingProfile.from_chain(
    t_dw=[1e6] * 6, t_dy=[0.0, 0.5e6, 0.0, 0.5e6, 0.0, 0.5e6], t_forward=1.0e6
)


def fleet(model, altered=lambda node, answer: answer, mods=(), **options):
    """Its grid; device k is 2^(k - 1) times slower."""
    app = ClientApp(mods=list(mods))
    samples = {k: et.Samples(*pictures(k), batch_size=8) for k in range(1, DEVICES + 1)}
    given = {"profile": PROFILE, **options}

    @app.train()
    def train(message, context):
        slow = context.node_config["slow"]
        mine = samples[context.node_id]
        return federated.train(message, context, model, mine, slowdown=slow, **given)

    @app.train("head")
    def head(message, context):
        return federated.head(message, context, model, samples[context.node_id])

    @app.evaluate()
    def evaluate(message, context):
        return federated.evaluate(message, context, model, pictures(context.node_id))

    return Here(app, [{"slow": 2.0**k} for k in range(DEVICES)], altered)

"""Velocities of neurons, the choice within a budget, and training by it."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from networks import L, crossentropy
from test_baselines import arrays, data

import elastic_tf as et
from elastic_tf.app import zoo
from elastic_tf.methods.neurons import Neurons, TrainNeurons, Velocity
from elastic_tf.train.recovery import PlanBackup


def resnet18() -> tf.keras.Model:
    """He et al., CVPR 2016, Table 1; the ends of strided convolutions are padded as in Keras."""

    def convolved(x, filters, kernel, strides, name):
        options = {"padding": "same", "use_bias": False, "name": name}
        x = L.Conv2D(filters, kernel, strides, **options)(x)
        return L.BatchNormalization(name=f"{name}_bn")(x, training=False)

    inputs = L.Input((224, 224, 3))
    x = L.ReLU()(convolved(inputs, 64, 7, 2, "stem"))
    x = L.MaxPooling2D(3, 2, padding="same")(x)
    for stage in range(4):
        filters = 64 * 2**stage
        for block in range(2):
            name, strides = f"layer{stage + 1}_{block}", 2 if stage and not block else 1
            start = x
            if strides > 1:
                start = convolved(x, filters, 1, strides, f"{name}_shortcut")
            x = L.ReLU()(convolved(x, filters, 3, strides, f"{name}_conv1"))
            x = convolved(x, filters, 3, 1, f"{name}_conv2")
            x = L.ReLU()(L.Add()([start, x]))
    return tf.keras.Model(inputs, L.Dense(1000, name="head")(L.GlobalAveragePooling2D()(x)))


class Plans(tf.keras.callbacks.Callback):
    """Notes the plan of each epoch, and may break off."""

    def __init__(self, breaks_at=None):
        super().__init__()
        self.seen, self._breaks_at = {}, breaks_at

    def on_train_batch_begin(self, batch, logs=None):
        epoch = int(self.model.optimizer.iterations) // 2
        if epoch == self._breaks_at:
            raise InterruptedError
        self.seen[epoch] = self.model.plan


def compiled() -> et.ElasticModel:
    tf.keras.utils.set_random_seed(0)
    layers = [L.Input((8, 8, 2)), L.Conv2D(4, 3, activation="relu"), L.DepthwiseConv2D(3)]
    layers += [L.Conv2D(8, 1), L.ReLU(), L.GlobalAveragePooling2D(), L.Dense(3)]
    model = et.ElasticModel.from_model(tf.keras.Sequential(layers))
    model.compile(tf.keras.optimizers.Adam(1e-2), crossentropy())
    return model


def trained(*callbacks, breaks_at=None) -> tuple[et.ElasticModel, dict[int, et.Plan]]:
    model, plans = compiled(), Plans(breaks_at)
    given = [*callbacks[:1], plans, *callbacks[1:]]
    options = {"epochs": 2, "verbose": 0, "callbacks": given}
    with contextlib.nullcontext() if breaks_at is None else pytest.raises(InterruptedError):
        model.fit(data().take(2), **options)
    return model, plans.seen


@pytest.mark.slow
def test_fast_neurons_are_chosen_within_the_budget_and_an_interrupted_fit_chooses_alike(tmp_path):
    def chooser():
        return TrainNeurons(et.Probe(arrays(), size=8, seed=1), share=0.5)

    whole, plans = trained(chooser())
    neurons = Neurons.of(whole)
    for plan in plans.values():
        costs = [
            neurons.cost[neurons.kernel == k][0] * len(channels)
            for k, channels in plan.channels.items()
        ]
        exact = [k for k in set(neurons.kernel) if plan.mask[k] and k not in plan.channels]
        spent = sum(costs) + sum(neurons.cost[np.isin(neurons.kernel, exact)])
        assert 0.5 * neurons.cost.sum() - neurons.cost.max() < spent <= 0.5 * neurons.cost.sum()
        kernels = np.isin(np.arange(len(plan)), neurons.kernel)
        assert (plan.mask[~kernels] == zoo.head_tensors(whole)[~kernels]).all()
    assert plans[0] != plans[1]

    backup = et.Backup(tmp_path / "backup")
    trained(chooser(), PlanBackup(backup), breaks_at=1)
    again, later = trained(chooser(), PlanBackup(backup))
    assert later == {1: plans[1]}
    np.testing.assert_equal([v.numpy() for v in whole.weights], [v.numpy() for v in again.weights])


NAMES = ("first", "depthwise", "point")


def network() -> et.ElasticModel:
    tf.keras.utils.set_random_seed(0)
    inputs = L.Input((8, 8, 3))
    x = L.Conv2D(4, 3, activation="relu", name="first")(inputs)
    x = L.DepthwiseConv2D(3, depth_multiplier=2, activation="relu", name="depthwise")(x)
    x = L.BatchNormalization()(L.Conv2D(5, 1, use_bias=False, name="point")(x))
    x = L.Dense(3)(L.GlobalAveragePooling2D()(L.ReLU()(x)))
    return et.ElasticModel.from_model(tf.keras.Model(inputs, x))


def samples(count: int = 10) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 8, 8, 3)).astype(np.float32)


def change(model: et.ElasticModel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign_add(rng.normal(scale=0.1, size=weight.shape) ** 2)


def outputs(model: et.ElasticModel, x: np.ndarray) -> np.ndarray:
    """(neurons, all outputs) of each neuron, stored."""
    found = []
    for name in NAMES:
        layer = model.get_layer(name)
        activation, layer.activation = layer.activation, tf.keras.activations.linear
        y = tf.keras.Model(model.input, layer.output)(x).numpy()
        y = layer(tf.keras.Model(model.input, layer.input)(x)).numpy() if activation else y
        layer.activation = activation
        count = {"first": 4, "depthwise": 4, "point": 5}[name]
        found.append(np.moveaxis(y.reshape(-1, count, y.shape[-1] // count), 1, 0))
    return [part.reshape(len(part), -1) for part in found]


def cosines(one: list[np.ndarray], two: list[np.ndarray]) -> np.ndarray:
    def normalised(part: np.ndarray) -> np.ndarray:
        return part / np.linalg.norm(part, axis=1, keepdims=True)

    return np.concatenate([(normalised(a) * normalised(b)).sum(axis=1) for a, b in zip(one, two)])


def test_streaming_sums_give_what_stored_outputs_give_and_the_weights_stay():
    model, x, phi, v = network(), samples(), np.ones(13), np.zeros(13)
    velocity = Velocity(model, x)
    for epoch in range(3):
        before = outputs(model, x)
        velocity.begin()
        change(model, epoch)
        weights = [weight.numpy() for weight in model.weights]
        velocity.end()
        for weight, own in zip(weights, model.weights):
            np.testing.assert_array_equal(weight, own)
        found = cosines(before, outputs(model, x))
        v, phi = found - phi - 0.5 * v, found
        np.testing.assert_allclose(velocity.phi, phi, atol=1e-5)
        np.testing.assert_allclose(velocity.v, v, atol=1e-5)
    assert np.abs(v).min() > 1e-5


def test_unchanged_weights_have_no_velocity_and_dead_neurons_are_told_apart():
    model = network()
    first = model.get_layer("first")
    first.set_weights([w * (np.arange(4) > 1) for w in first.get_weights()])
    velocity = Velocity(model, samples(4))
    velocity.begin()
    velocity.end()
    np.testing.assert_array_equal(velocity.phi, 1.0)
    np.testing.assert_array_equal(velocity.v, 0.0)
    velocity.begin()
    first.set_weights([w + (np.arange(4) == 0) for w in first.get_weights()])
    velocity.end()
    assert velocity.phi[:4].tolist() == [0.0, 1.0, 1.0, 1.0]


def test_weights_that_are_no_numbers_are_refused():
    model = network()
    velocity = Velocity(model, samples(4))
    velocity.begin()
    model.get_layer("point").set_weights([np.full((1, 1, 8, 5), np.nan)])
    with pytest.raises(ValueError, match=r"must be finite. Received: .*nan"):
        velocity.end()


@pytest.mark.parametrize("seed", range(4))
def test_the_next_neuron_would_exceed_the_budget(seed):
    neurons = Neurons.of(network())
    assert sorted({*neurons.cost}) == [8, 18, 27]
    order = np.random.default_rng(seed).permutation(13)
    for budget in (27, 60, 100.5, 1000):
        chosen = neurons.within(order, budget)
        spent = neurons.cost[chosen].sum()
        assert spent <= budget
        assert len(chosen) == 13 or spent + neurons.cost[order[len(chosen)]] > budget
    with pytest.raises(ValueError, match="Received: 7 weights, where the first one has"):
        neurons.within(order, 7)


def test_whole_kernels_are_exact_and_others_have_their_channels():
    model = network()
    neurons = Neurons.of(model)
    plan = neurons.plan(np.array([0, 1, 2, 3, 9, 11]), np.arange(len(model.tensors)) == 7)
    assert [k for k in np.flatnonzero(plan.mask)] == [0, 4, 7]
    assert dict(plan.channels) == {4: (1, 3)}
    with pytest.raises(ValueError, match="which has none that can be trained alone"):
        Neurons.of(et.ElasticModel.from_model(tf.keras.Sequential([L.Input((2,)), L.Dense(2)])))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "weights", "count"),
    [
        (lambda: tf.keras.applications.MobileNetV2(weights=None), 2_189_760, 17_056),
        (lambda: resnet18(), 11_166_912, None),
    ],
)
def test_the_totals_of_the_paper_are_met(build, weights, count):
    """Quelennec et al., WACV 2024, Table 1: budgets are shares of these."""
    neurons = Neurons.of(et.ElasticModel.from_model(build()))
    assert neurons.cost.sum() == weights
    assert count is None or len(neurons.cost) == count

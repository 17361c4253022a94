"""The methods of two other papers that choose channels, in training."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from networks import L, crossentropy
from test_baselines import arrays, data

import elastic_tf as et
from elastic_tf.app import zoo
from elastic_tf.methods.neurons import Neurons, TrainNeurons


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

    backup = str(tmp_path / "backup")
    trained(chooser(), tf.keras.callbacks.BackupAndRestore(backup), breaks_at=1)
    again, later = trained(chooser(), tf.keras.callbacks.BackupAndRestore(backup))
    assert later == {1: plans[1]}
    np.testing.assert_equal([v.numpy() for v in whole.weights], [v.numpy() for v in again.weights])

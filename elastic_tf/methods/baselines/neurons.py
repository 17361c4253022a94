"""Methods that train some neurons of all convolutions, within a budget of weights.

The budget counts weights, as in the paper, and not seconds: the gradient of the inputs goes all the
way back whatever neurons are trained. So these methods take no rho; where methods are compared at
equal seconds, they get as many epochs as fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.choose.importance.probe import Probe
from elastic_tf.methods.baselines.method import Method
from elastic_tf.methods.baselines.velocity import Neurons, Velocity
from elastic_tf.train.head.features import head_tensors

# Of the weights of all convolutions: the smallest of the paper's budgets, 192,311 of the 2,189,760
# of MobileNetV2 (Table 2).
SHARE = 192_311 / 2_189_760
_KEY = "neurons"  # in `model.fit_state`


class TrainNeurons(tf.keras.callbacks.Callback):
    """Chooses neurons anew before each epoch; trains these and the head, and nothing else.

    Before the first epoch they are drawn at random, later the fastest of the epoch before are
    taken. Biases and normalisation stay frozen. It stands before a `BackupAndRestore` among the
    callbacks: what is known of neurons is kept at the end of an epoch.

    Args:
        probe: where the samples are drawn from that neurons are observed on. None: the choice
            stays random.
        share: weights that are trained / weights of all convolutions.
        seed: of the random choices.

    Source: Quelennec et al., WACV 2024, Sec. 3.3. Its released code charges a random choice for
    neurons that it does not train; here the draw ends where the next neuron would not fit.
    """

    def __init__(self, probe: Probe | None, share: float = SHARE, seed: int = 0) -> None:
        super().__init__()
        self._probe, self._share, self._seed = probe, share, seed

    def on_train_begin(self, logs: Any = None) -> None:
        self._neurons, self._velocity = Neurons.of(self.model), None
        if self._probe is not None:
            draws = self._probe.draws()
            assert draws is not None
            self._velocity = Velocity(self.model, draws.draw()[0].numpy())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        neurons, known = self._neurons, self.model.fit_state.get(_KEY)
        order = np.random.default_rng([self._seed, epoch]).permutation(len(neurons.cost))
        if self._velocity is not None and known is not None:
            self._velocity.phi, self._velocity.v = (np.array(known[name]) for name in ("phi", "v"))
            order = self._velocity.order()
        chosen = neurons.within(order, self._share * neurons.cost.sum())
        self.model.set_plan(neurons.plan(chosen, head_tensors(self.model)))
        self.model.cache_prefix(1)
        if self._velocity is not None:
            self._velocity.begin()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._velocity is not None and epoch + 1 < self.params["epochs"]:
            self._velocity.end()
            known = {"phi": self._velocity.phi.tolist(), "v": self._velocity.v.tolist()}
            self.model.fit_state[_KEY] = known  # every bit, in JSON too


METHODS = (
    Method(
        "velocity",
        "the fastest neurons, anew each epoch, 8.8 % of the weights (Quelennec et al., 2024)",
        lambda task: [
            TrainNeurons(Probe(task.probe, size=task.probe_size, seed=task.seed), seed=task.seed)
        ],
    ),
    Method(
        "random_neurons",
        "as velocity, drawn at random each epoch",
        lambda task: [TrainNeurons(None, seed=task.seed)],
    ),
)

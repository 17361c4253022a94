"""Methods that train some neurons of all convolutions, within a budget of weights.

The budget counts weights, as in the paper, and not seconds: the gradient of the inputs goes all the
way back whatever neurons are trained. So these methods take no rho; where methods are compared at
equal seconds, they get as many epochs as fit.

A neuron is an output channel of a convolution. Its velocity is how fast the relation between a
network's inputs and the channel changes: its outputs before an epoch and after it are compared on
the same samples; a neuron whose similarity changes is still learning.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.choose.probe import Probe
from elastic_tf.plan import EXACT, NAMES, SOME, Plan, layers_of
from elastic_tf.stack import never_differentiated
from elastic_tf.train.engine import modes
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.tracing import host_generators_kept
from elastic_tf.train.head.features import head_tensors

# Of the weights of all convolutions: the smallest of the paper's budgets, 192,311 of the 2,189,760
# of MobileNetV2 (Table 2).
SHARE = 192_311 / 2_189_760
_KEY = "neurons"  # in `model.fit_state`
_MU = 0.5  # share of the last velocity
_BATCH = 8  # samples in one pass


class Neurons(NamedTuple):
    """The neurons of the convolutions of a network, by kernel and channel, in forward order.

    Attributes:
        kernel: (n,) index of the kernel among the tensors.
        channel: (n,) among the channels of that kernel.
        cost: (n,) weights of each neuron; biases and normalisation are not counted.
    """

    kernel: np.ndarray
    channel: np.ndarray
    cost: np.ndarray

    @classmethod
    def of(cls, model: ElasticMixin) -> Neurons:
        """Those of all convolutions that can train channels alone; a ValueError without any."""
        layers, found = layers_of(arguments.elastic(model)), []
        for k, axis in modes.channel_axes(model, NAMES[SOME]).items():
            if not isinstance(layers[k], tf.keras.layers.Dense):
                count, size = model.tensors[k].shape[axis], int(np.prod(model.tensors[k].shape))
                found.append((np.full(count, k), np.arange(count), np.full(count, size // count)))
        if not found:
            raise ValueError(
                "Neurons are output channels of Conv2D and DepthwiseConv2D. Received: "
                f"'{model.name}', which has none that can be trained alone. Use another method."
            )
        return cls(*(np.concatenate(parts) for parts in zip(*found)))

    def within(self, order: np.ndarray, budget: float) -> np.ndarray:
        """The longest beginning of an order of neurons that has at most `budget` weights (Eq. 6).

        Raises:
            ValueError: not even the first fits.
        """
        count = int(np.searchsorted(np.cumsum(self.cost[order]), budget, side="right"))
        if not count:
            raise ValueError(
                f"A budget must hold a neuron. Received: {budget:g} weights, where the first one "
                f"has {self.cost[order[0]]}. Give more."
            )
        return order[:count]

    def plan(self, chosen: np.ndarray, mask: np.ndarray) -> Plan:
        """Train these neurons, and exactly what is True in a mask, shape (N,)."""
        plan = Plan.from_mask(mask)
        for k in np.unique(self.kernel[chosen]).tolist():
            channels = np.sort(self.channel[chosen[self.kernel[chosen] == k]])
            if len(channels) == np.count_nonzero(self.kernel == k):
                plan = plan.with_mode(NAMES[EXACT], np.arange(len(plan)) == k)
            else:
                plan = plan.with_channels(NAMES[SOME], {k: channels.tolist()})
        return plan


class Velocity:
    """Velocities of neurons over epochs.

    phi = cosine of a neuron's outputs on all samples, before an epoch and after it (Eq. 1);
    v = phi - (phi of the epoch before) - mu * (v of the epoch before) (Eqs. 2, 3)

    Outputs are those of the convolution, before normalisation, as in inference. They are not kept:
    both networks run on a few samples at a time, and three sums of each neuron are. In the
    beginning phi is 1 and v is 0, which the papers leave open. A neuron that gives nothing but
    zeros has phi 1, or 0 if it did so only once.

    Args:
        model: elastic model, built.
        x: samples on which neurons are observed.

    Attributes:
        neurons: of the model.
        phi: (n,) float64.
        v: (n,) float64.

    Source: Quelennec et al., WACV 2024, Sec. 3.2, after Bragagnolo et al., NEq, NeurIPS 2022.
    """

    def __init__(self, model: ElasticMixin, x: Any) -> None:
        self.neurons = Neurons.of(model)
        self.phi, self.v = np.ones(len(self.neurons.cost)), np.zeros(len(self.neurons.cost))
        self._model, self._x, self._before = model, x, list[np.ndarray]()
        spec = tf.TensorSpec((None, *x.shape[1:]), x.dtype)
        self._run = tf.function(self._outputs, input_signature=[spec], autograph=False)
        self._kernels: list[int] = []  # of what it gives

    def begin(self) -> None:
        """Keep the weights as they are now, to be compared with."""
        self._before = self._model.get_weights()

    def end(self) -> None:
        """Compare the network with that of `begin`; a ValueError where outputs are not finite."""
        now = self._model.get_weights()
        sums = np.zeros((3, len(self.phi)))
        try:
            for start in range(0, len(self._x), _BATCH):
                part, outputs = tf.convert_to_tensor(self._x[start : start + _BATCH]), []
                for held in (now, self._before):
                    self._model.set_weights(held)
                    outputs.append(self._run(part))
                sums += self._sums(*outputs)
        finally:
            self._model.set_weights(now)
        if not np.isfinite(sums).all():
            first = int(np.argmin(np.isfinite(sums).all(axis=0)))
            raise ValueError(
                f"The outputs of neurons must be finite. Received: {sums[:, first].tolist()} as "
                f"sums of products of '{self._model.tensors[self.neurons.kernel[first]].name}'. "
                "Lower the learning rate."
            )
        both, one, other = sums
        lengths = np.sqrt(one * other)
        phi = np.divide(both, lengths, out=np.zeros_like(both), where=lengths > 0.0)
        phi[(one == 0.0) & (other == 0.0)] = 1.0
        self.v = phi - self.phi - _MU * self.v
        self.phi = phi

    def _outputs(self, x: tf.Tensor) -> list[tf.Tensor]:
        """(..., channels) of each use of a kernel."""
        index = {id(tensor): k for k, tensor in enumerate(self._model.tensors)}
        with never_differentiated(), host_generators_kept(self._model):
            with modes.recorded(self._model) as uses:
                self._model(x, training=False)
        uses = [use for use in uses if index.get(id(use.kernel)) in self.neurons.kernel]
        self._kernels = [index[id(use.kernel)] for use in uses]
        return [
            tf.nn.bias_add(use.y, use.layer.bias) if use.layer.use_bias else use.y for use in uses
        ]

    def _sums(self, now: list[tf.Tensor], before: list[tf.Tensor]) -> np.ndarray:
        """(3, n) sums of now * before, of now squared and of before squared."""
        found = np.zeros((3, len(self.neurons.cost)))
        for k, *pair in zip(self._kernels, now, before):
            at = self.neurons.kernel == k
            # of a depthwise kernel a neuron may have several outputs
            one, two = (
                tf.reshape(tf.cast(part, tf.float64), (-1, at.sum(), part.shape[-1] // at.sum()))
                for part in pair
            )
            products = (one * two, one * one, two * two)
            found[:, at] += [tf.reduce_sum(product, (0, 2)).numpy() for product in products]
        return found


class TrainNeurons(tf.keras.callbacks.Callback):
    """Chooses neurons anew before each epoch; trains these and the head, and nothing else.

    Before the first epoch they are drawn at random, later the fastest of the epoch before are
    taken. Biases and normalisation stay frozen. It stands before what backs up among the
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
            order = np.argsort(-np.abs(self._velocity.v) / neurons.cost, kind="stable")  # Eq. 7
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

"""PruneTrain: a model that is rebuilt smaller as it trains, and the callback that does it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, stack
from elastic_tf.methods.baselines.method import Method
from elastic_tf.train.engine import replicas
from elastic_tf.train.engine.forward_order import input_spec
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.state import Step
from elastic_tf.train.optimizers.accumulation import Accumulation
from related import graph
from related.prunetrain import groups, rebuild
from related.prunetrain.groups import Channels


class _WithLasso(Step):
    """A step whose loss holds the group lasso; `shown` is that without."""

    shown: Any


class PruneTrainModel(ElasticMixin, tf.keras.Model):
    """An elastic model of a network that can be exchanged for a smaller one, in `fit` too.

    Metrics, history and callbacks go on over an exchange, so do step count, learning rate and slots
    in a new optimizer. The loss that Keras shows is that without the group lasso.

    Attributes:
        network: the present network; save this one, for the file then holds its architecture.
    """

    optimizer: Any  # of Keras

    def __init__(self, network: tf.keras.Model) -> None:
        super().__init__(name=network.name, dtype=network.dtype_policy)
        # a plain object, so that Keras does not track what is in it
        self._pruning = SimpleNamespace(
            channels=groups.channel_groups(network),
            removed=[],
            ratio=None,  # None: no group lasso in the loss
            coefficient=tf.Variable(math.nan, trainable=False),  # NaN: not yet set
        )
        self.network = network
        self.built = True
        stack.set_input_spec(self, input_spec(network))

    @property
    def channels(self) -> Channels:
        """The channels of the present network, and which of them belong together."""
        return self._pruning.channels

    @property
    def removed(self) -> list[list[int]]:
        """What has been removed so far: the labels of the channels, at each rebuild."""
        return list(self._pruning.removed)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The network's forward pass."""
        return self.network(inputs, training=training)

    def forward(self, data: Any, training: bool = True) -> Step:
        """One forward pass and its loss; in training, with the group lasso if it is switched on.

        The first step sets the coefficient so that coefficient * lasso / (loss + coefficient *
        lasso) = ratio, the loss that of the data alone.
        """
        step = super().forward(data, training)
        ratio = self._pruning.ratio
        if ratio is None or not training:
            return step
        loss = tf.cast(step.loss, tf.float32)
        lasso = groups.penalty(self.network, self.channels)
        of_data = loss - tf.add_n([tf.cast(each, tf.float32) for each in [*self.losses, 0.0]])
        first = tf.stop_gradient(ratio / (1.0 - ratio) * of_data / lasso)
        known = self._pruning.coefficient
        coefficient = tf.where(tf.math.is_nan(known), first, known)
        known.assign(coefficient)
        whole = _WithLasso(
            *step._replace(loss=tf.cast(loss + coefficient * lasso, step.loss.dtype))
        )
        whole.shown = step.loss
        return whole

    def finish(self, step: Step) -> dict[str, tf.Tensor]:
        """Update the metrics; returns the logs of the step, the loss without the group lasso."""
        return super().finish(step._replace(loss=getattr(step, "shown", step.loss)))

    def use_lasso(self, ratio: float | None) -> None:
        """Give the group lasso this share of the loss of the next step; None switches it off."""
        self._pruning.ratio = ratio
        if ratio is not None:
            self._pruning.coefficient.assign(math.nan)
        self._make_functions_anew()

    def reconfigure(self, threshold: float = 1e-4) -> None:
        """Rebuild without the channels whose weights are all below `threshold`."""
        keep = groups.channels_to_keep(self.network, self.channels, threshold)
        if not keep.all():
            self.remove(np.flatnonzero(~keep).tolist())

    def remove(self, labels: list[int]) -> None:
        """Rebuild without the channels of these labels; the optimizer goes on with the rest."""
        keep = np.ones(len(self.channels.pinned), dtype=bool)
        keep[labels] = False
        accumulation, plan = self._elastic.accumulation, self.plan
        if accumulation is not None:
            accumulation.flush()
        network, carried = rebuild.rebuilt(self.network, self.channels, keep)
        self._exchange(network)
        self._pruning.channels = self.channels.relabelled(lambda kept: kept[keep[kept]])
        self._pruning.removed.append(labels)
        if self.optimizer is not None:
            self.optimizer = rebuild.carried_on(self.optimizer, carried, self.trainable_variables)
        if accumulation is not None:
            self._elastic.accumulation = Accumulation(
                accumulation.steps, self.distribute_strategy, self.optimizer
            )
        self._make_functions_anew()
        self.set_plan(plan)

    def _exchange(self, network: tf.keras.Model) -> None:
        tracker = getattr(self, "_tracker", None)  # of Keras 3: forgets no layer, takes no new one
        if tracker is not None:
            tracker.unlock()
            tracker.untrack(self.network)
        self.network = network

    def _make_functions_anew(self) -> None:
        is_made = self.train_function is not None
        self._forget_traces()
        self.test_function = self.predict_function = None
        if is_made:
            self.make_train_function()


class PruneTrainCallback(tf.keras.callbacks.Callback):
    """Trains under a group lasso, and removes the channels that became sparse.

    Every `interval` epochs and at the end the model is rebuilt without the channels whose groups
    are all below `threshold`, in the layers that make them and in those that take them. The history
    says how many `parameters` were left. Around zero a group swings by about what a step moves it,
    so that a learning rate that decays removes far more.

    Weights that another callback keeps over a rebuild no longer fit the model:
    `EarlyStopping(restore_best_weights=True)`, `BackupAndRestore`.

    Args:
        ratio: share of the group lasso in the whole loss at the start, in (0, 1).
        threshold: of the largest absolute weight in a group.
        interval: epochs between two rebuilds.

    Source: Lym et al., PruneTrain, SC 2019.
    """

    def __init__(self, *, ratio: float = 0.2, threshold: float = 1e-4, interval: int = 10) -> None:
        super().__init__()
        self.ratio = arguments.number("ratio", ratio, low=0.0, above=True, high=1.0, below=True)
        self.threshold = arguments.number("threshold", threshold, low=0.0, above=True)
        self.interval = arguments.count("interval", interval)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Refuse what cannot be served; switch the lasso on."""
        model, count = self.model, replicas.count(self.model.distribute_strategy)
        hint = "Make one with elastic_tf.methods.baselines.prunetrain.adapt(model) and compile it."
        arguments.instance("model", model, PruneTrainModel, "a PruneTrainModel", hint)
        if count > 1:
            raise ValueError(f"PruneTrain runs on one replica. Received: {count} replicas.")
        rebuild.check_slots(model.optimizer, model.trainable_variables)
        model.use_lasso(self.ratio)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Rebuild where the interval has passed."""
        if epoch and epoch % self.interval == 0:
            self.model.reconfigure(self.threshold)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Let the history tell how large the model is."""
        if logs is not None:
            logs["parameters"] = self.model.count_params()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Rebuild once more; switch the lasso off."""
        self.model.reconfigure(self.threshold)
        self.model.use_lasso(None)


def adapt(model: tf.keras.Model) -> PruneTrainModel:
    """A model that PruneTrain can rebuild; outputs and weights are those of `model`.

    The weights are shared until channels are removed. Channels that Keras's own layers of
    convolutional networks do not hand on one by one stay: those of a `Lambda`, of an operator on
    tensors, of a model inside the model.

    Raises:
        TypeError: more than a graph of layers, or a training step of its own.
        ValueError: a model of which nothing can be removed.
    """
    if isinstance(model, PruneTrainModel):
        return model
    graph.check(model, "PruneTrain")
    network = tf.keras.Model(*stack.graph_ends(model), name=model.name)
    for layer in network.layers:
        graph.anew(layer)  # refuses what cannot be made again
    adapted = PruneTrainModel(network)
    if adapted.channels.pinned.all():
        raise ValueError(
            "PruneTrain needs a convolution or dense layer whose channels can be removed. "
            f"Received: '{model.name}', where all belong to the inputs, to the outputs or to "
            "layers that mix them. Take a model inside the model apart into its layers."
        )
    return adapted


METHODS = (
    Method(
        "prunetrain",
        "all tensors under a group lasso; sparse channels are removed (Lym et al. 2019)",
        lambda task: [PruneTrainCallback(interval=task.interval)],
        adapt=adapt,
        can_go_on=False,
    ),
)

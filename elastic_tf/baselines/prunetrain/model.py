"""A model of a network that is rebuilt smaller as it trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.baselines import graph
from elastic_tf.baselines.prunetrain import group_lasso, rebuild
from elastic_tf.baselines.prunetrain.groups import Channels, channel_groups
from elastic_tf.engine.accumulation import Accumulation
from elastic_tf.engine.forward_order import input_spec
from elastic_tf.engine.mixin import ElasticMixin, Step
from elastic_tf.model import ElasticModel


class _Pruning:
    """What the model remembers; a plain object, so that Keras does not track it."""

    def __init__(self) -> None:
        self.channels: Channels
        self.removed: list[list[int]] = []  # labels that went at each rebuild
        self.ratio: float | None = None  # None: no group lasso in the loss
        self.coefficient = tf.Variable(_UNSET, trainable=False, name="lasso_coefficient")


_UNSET = -1.0  # coefficient before the first step


class PruneTrainModel(ElasticMixin, tf.keras.Model):
    """An elastic model of a network that can be exchanged for a smaller one, in `fit` too.

    Metrics, history, the optimizer with its step count and learning rate, and callbacks go on over
    an exchange. The loss that Keras shows is that without the group lasso.

    Args:
        network: plain functional model, see `adapt`.

    Attributes:
        network: the present network; save this one, for the file then holds its architecture.
    """

    def __init__(self, network: tf.keras.Model) -> None:
        super().__init__(name=network.name, dtype=network.dtype_policy)
        self._pruning = _Pruning()
        self._pruning.channels = channel_groups(network)
        self.network = network
        self.built = True
        self._set_save_spec(input_spec(network))

    @property
    def channels(self) -> Channels:
        """The channels of the present network, and which of them belong together."""
        return self._pruning.channels

    @property
    def removed(self) -> list[list[int]]:
        """What has been removed so far: the labels of the channels, at each rebuild."""
        return [list(labels) for labels in self._pruning.removed]

    @property
    def lasso_coefficient(self) -> float | None:
        """The group lasso's coefficient in the loss; None before it is set in the first step."""
        value = float(self._pruning.coefficient.numpy())
        return None if value == _UNSET else value

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """The network's forward pass."""
        return self.network(inputs, training=training)

    def forward(self, data: Any, training: bool = True) -> Step:
        """One forward pass and its loss; in training, with the group lasso if it is switched on.

        The first step sets the coefficient so that coefficient * lasso / (loss + coefficient *
        lasso) = ratio, the loss that of the data alone.

        Source: Lym et al., PruneTrain, SC 2019 (lasso penalty ratio).
        """
        step = super().forward(data, training)
        ratio = self._pruning.ratio
        if ratio is None or not training:
            return step
        loss = tf.cast(step.loss, tf.float32)
        lasso = group_lasso.penalty(self.network, self.channels)
        of_data = loss - tf.add_n([tf.cast(each, tf.float32) for each in [*self.losses, 0.0]])
        first = tf.stop_gradient(ratio / (1.0 - ratio) * of_data / lasso)
        known = self._pruning.coefficient
        coefficient = tf.where(tf.equal(known, _UNSET), first, known)
        known.assign(coefficient)
        return step._replace(loss=tf.cast(loss + coefficient * lasso, step.loss.dtype))

    def use_lasso(self, ratio: float | None) -> None:
        """Switch the group lasso on or off, from the next step on.

        Args:
            ratio: share of the group lasso in the whole loss of the next step, which sets the
                coefficient for good; None switches it off.
        """
        self._pruning.ratio = ratio
        if ratio is not None:
            self._pruning.coefficient.assign(_UNSET)
        self._make_functions_anew()

    def reconfigure(self, threshold: float = 1e-4) -> int:
        """Rebuild without the channels whose weights are all below `threshold`.

        Args:
            threshold: of the largest absolute weight in the groups of a channel.

        Returns:
            How many channels were removed; each counts once, however many layers share it.
        """
        keep = group_lasso.channels_to_keep(self.network, self.channels, threshold)
        labels = np.flatnonzero(~keep).tolist()
        if labels:
            self.remove(labels)
        return len(labels)

    def remove(self, labels: list[int]) -> None:
        """Rebuild without the channels of these labels; the optimizer goes on with the rest.

        The outputs stay what they are when the weights of these channels are zero.

        Args:
            labels: as in `channels`; along every axis of a weight others must remain.

        Raises:
            ValueError: channels that must stay.
        """
        keep = np.ones(len(self.channels.pinned), dtype=bool)
        keep[labels] = False
        if self.channels.pinned[~keep].any():
            raise ValueError(
                "`labels` must be of channels that `channels.pinned` does not hold. Received: "
                f"{labels}."
            )
        optimizer, accumulation, plan = self.optimizer, self._elastic.accumulation, self.plan
        if accumulation is not None:
            accumulation.flush()
        if optimizer is not None:
            rebuild.check_slots(optimizer, self.trainable_variables)
        self.network, carried = rebuild.rebuilt(self.network, self.channels, keep)
        self._pruning.channels = self.channels.kept(keep)
        self._pruning.removed.append(list(labels))
        if optimizer is not None:
            rebuild.carry_slots(optimizer, carried, self.trainable_variables)
        if accumulation is not None:
            self._elastic.accumulation = Accumulation(
                accumulation.steps, self.distribute_strategy, optimizer
            )
        self._make_functions_anew()
        self.set_plan(plan)

    def _make_functions_anew(self) -> None:
        is_made = self.train_function is not None
        self._reset_compile_cache()
        if is_made:
            self.make_train_function()


def adapt(model: tf.keras.Model) -> PruneTrainModel:
    """A model that PruneTrain can rebuild; outputs and weights are those of `model`.

    The weights are shared until channels are removed. A layer that mixes channels in a way of its
    own keeps them, and a model inside the model counts as such a layer.

    Args:
        model: functional or sequential model, built.

    Raises:
        TypeError: not a graph of layers, a training step of its own, or a layer without config.
        ValueError: what a rebuilt model would lack, or a model of which nothing can be removed.
    """
    if isinstance(model, PruneTrainModel):
        return model
    graph.check(model, "PruneTrain")
    ElasticModel.from_model(model)  # refuses a training step of its own
    network = tf.keras.Model(model.input, model.output, name=model.name)
    for layer in network.layers:
        graph.anew(layer)  # refuses what cannot be made again
    adapted = PruneTrainModel(network)
    channels = adapted.channels
    if all(channels.pinned[side.labels].all() for side in group_lasso.sides(network, channels)):
        raise ValueError(
            "PruneTrain needs a convolution or dense layer whose channels can be removed. "
            f"Received: '{model.name}', where all belong to the inputs, to the outputs or to "
            "layers that mix them. Take a model inside the model apart into its layers."
        )
    return adapted

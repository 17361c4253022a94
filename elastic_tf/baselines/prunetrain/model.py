"""PruneTrain: training under a group lasso, in a model that is rebuilt smaller as it goes.

    model = prunetrain.adapt(model)             # any functional model; outputs unchanged
    model.compile(...)
    model.fit(..., callbacks=[prunetrain.PruneTrainCallback(ratio=0.2, interval=10)])
    model.network.save("pruned.keras")          # a plain functional model

Source: Lym et al., PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration, SC 2019.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.baselines.method import Method, Task
from elastic_tf.baselines.prunetrain import group_lasso, rebuild, slots
from elastic_tf.baselines.prunetrain.backup import take_up_backup
from elastic_tf.baselines.prunetrain.callback import PruneTrainCallback
from elastic_tf.baselines.prunetrain.groups import Channels, channel_groups
from elastic_tf.baselines.prunetrain.rules import RULES
from elastic_tf.engine.accumulation import Accumulation
from elastic_tf.engine.forward_order import input_spec
from elastic_tf.engine.mixin import ElasticMixin, Step
from elastic_tf.model import ElasticModel

__all__ = ["METHODS", "PruneTrainCallback", "PruneTrainModel", "adapt", "callbacks"]


class _Pruning:
    """What the model remembers; a plain object, so that Keras does not track it."""

    def __init__(self) -> None:
        self.channels: Channels | None = None
        self.removed: list[list[int]] = []  # labels that went at each rebuild
        self.ratio: float | None = None  # None: no group lasso in the loss
        self.coefficient = tf.Variable(_UNSET, trainable=False, name="lasso_coefficient")


_UNSET = -1.0  # coefficient before the first step


class PruneTrainModel(ElasticMixin, tf.keras.Model):
    """An elastic model of a network that can be exchanged for a smaller one, in `fit` too.

    Metrics, history, the optimizer with its step count and learning rate, and callbacks go on over
    an exchange. The loss that Keras shows is that without the group lasso.

    Args:
        network: plain functional model without models inside, see `adapt`.

    Attributes:
        network: the present network; save this one, for the file then holds its architecture.
    """

    def __init__(self, network: tf.keras.Model) -> None:
        super().__init__(name=network.name, dtype=network.dtype_policy)
        self._pruning = _Pruning()
        self.network = network
        self.built = True
        self._set_save_spec(input_spec(network))

    @property
    def channels(self) -> Channels:
        """The channels of the present network, and which of them belong together."""
        if self._pruning.channels is None:
            self._pruning.channels = channel_groups(self.network, RULES)
        return self._pruning.channels

    @property
    def removed(self) -> list[list[int]]:
        """What has been removed so far: the labels in `channels` at each rebuild."""
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

        The first step sets the coefficient.
        """
        step = super().forward(data, training)
        ratio = self._pruning.ratio
        if ratio is None or not training:
            return step
        loss = tf.cast(step.loss, tf.float32)
        lasso = group_lasso.penalty(self.network, self.channels)
        of_data = loss - tf.add_n([tf.cast(each, tf.float32) for each in [*self.losses, 0.0]])
        first = tf.stop_gradient(group_lasso.coefficient(ratio, of_data, lasso))
        known = self._pruning.coefficient
        coefficient = tf.where(tf.equal(known, _UNSET), first, known)
        known.assign(coefficient)
        return step._replace(loss=tf.cast(loss + coefficient * lasso, step.loss.dtype))

    def use_lasso(self, ratio: float | None, *, coefficient: float | None = None) -> None:
        """Switch the group lasso on or off, from the next step on.

        Args:
            ratio: share of the group lasso in the whole loss of the next step, which sets the
                coefficient for good; None switches it off.
            coefficient: the coefficient, if it is known already.
        """
        self._pruning.ratio = ratio
        if ratio is not None:
            self._pruning.coefficient.assign(_UNSET if coefficient is None else coefficient)
        self._make_functions_anew()

    def reconfigure(self, threshold: float = 1e-4) -> int:
        """Set groups below `threshold` to zero, and rebuild without the channels that are left out.

        Args:
            threshold: of the largest absolute weight in a group.

        Returns:
            How many channels were removed; each counts once, however many layers share it.
        """
        keep = group_lasso.channels_to_keep(self.network, self.channels, threshold)
        for kernel, value in group_lasso.zeroed(self.network, self.channels, threshold, keep):
            kernel.assign(value)
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
            ValueError: channels that there are not, that must stay, or that a layer needs.
        """
        keep = _kept(self.channels, labels)
        optimizer, accumulation = self.optimizer, self._elastic.accumulation
        if accumulation is not None:
            accumulation.flush()
        if optimizer is not None:
            slots.check(optimizer, self.trainable_variables)
        self.network, carried = rebuild.rebuilt(self.network, self.channels, keep)
        self._pruning.channels = None
        self._pruning.removed.append(list(labels))
        if optimizer is not None:
            slots.carry(optimizer, carried, self.trainable_variables)
        if accumulation is not None:
            self._elastic.accumulation = Accumulation(
                accumulation.steps, self.distribute_strategy, optimizer
            )
        self._make_functions_anew()

    def fit(self, *args: Any, **kwargs: Any) -> tf.keras.callbacks.History:
        """`tf.keras.Model.fit`; goes on with an interrupted one that has removed channels."""
        given = dict(zip(_FIT_ARGUMENTS, args))
        self._pruning.ratio = None  # an interrupted `fit` leaves one
        take_up_backup(self, kwargs.get("callbacks", given.get("callbacks")))
        return super().fit(*args, **kwargs)

    def _make_functions_anew(self) -> None:
        is_made = self.train_function is not None
        self._reset_compile_cache()
        if is_made:
            self.make_train_function()


_FIT_ARGUMENTS = ("x", "y", "batch_size", "epochs", "verbose", "callbacks")


def adapt(model: tf.keras.Model) -> PruneTrainModel:
    """A model that PruneTrain can rebuild; outputs and weights are those of `model`.

    The weights are shared until channels are removed. A model inside the model is taken apart into
    its layers. Layers of kinds that are not known (see `channel_rules`) keep their channels.

    Args:
        model: functional or sequential model, built.

    Raises:
        TypeError: not a graph of layers, a training step of its own, or a layer without config.
        ValueError: what a rebuilt model would lack, or a model of which nothing can be removed.
    """
    if isinstance(model, PruneTrainModel):
        return model
    network = rebuild.flat_network(model)
    ElasticModel.from_model(model)  # refuses a training step of its own
    rebuild.check_rebuilds(network)
    adapted = PruneTrainModel(network)
    if not adapted.channels.free:
        raise ValueError(
            "PruneTrain needs a convolution or dense layer whose channels can be removed. "
            f"Received: '{model.name}', where all belong to the inputs, to the outputs or to "
            "layers of unknown kinds. Known kinds are in elastic_tf.baselines.prunetrain.rules."
        )
    return adapted


def callbacks(task: Task) -> list[tf.keras.callbacks.Callback]:
    """PruneTrain with the paper's ratio and threshold, reconfigured at the interval of the task."""
    batch = None if task.probe is None else next(iter(task.probe))
    return [PruneTrainCallback(interval=min(task.interval, task.epochs), batch=batch)]


def _kept(channels: Channels, labels: list[int]) -> np.ndarray:
    """True at all other labels, if these can go."""
    keep = np.ones(len(channels.pinned), dtype=bool)
    free = np.zeros(len(keep), dtype=bool)
    for site in channels.sites.values():
        for along in site.all_labels():
            free[along] = ~channels.pinned[along]
    wrong = [label for label in labels if not (0 <= label < len(keep) and free[label])]
    if wrong:
        raise ValueError(
            "`labels` must be of channels that can be removed: where `channels.pinned` is False in "
            f"the labels of a layer. Received: {wrong[0]} among {len(labels)} labels."
        )
    keep[labels] = False
    for name, site in channels.sites.items():
        if not all(keep[along].any() for along in site.all_labels()):
            raise ValueError(
                f"At least one channel must be left in every layer. Received: all of '{name}' "
                f"among {len(labels)} labels."
            )
    return keep


METHODS = (
    Method(
        "prunetrain",
        "all tensors under a group lasso; sparse channels are removed (Lym et al. 2019)",
        callbacks,
        adapt=adapt,
    ),
)

"""The callback that makes `fit` a PruneTrain: group lasso, and a smaller model every few epochs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.baselines.method import Method, Task
from elastic_tf.baselines.prunetrain import rebuild
from elastic_tf.baselines.prunetrain.model import PruneTrainModel, adapt
from elastic_tf.engine import replicas


@dataclasses.dataclass(frozen=True)
class Reconfiguration:
    """The model after channels were removed; the first one is the model at the start.

    Attributes:
        epoch: epochs that had been trained.
        removed: channels removed; one that several layers share counts once.
        parameters: weights of the model, the buffers included.
    """

    epoch: int
    removed: int
    parameters: int


class PruneTrainCallback(tf.keras.callbacks.Callback):
    """Trains under a group lasso; every `interval` epochs removes the channels that became sparse.

    The lasso's coefficient is one for all groups, set in the first step so that the lasso is
    `ratio` of the whole loss, and stays. A channel is removed when the weights of all its groups
    are below `threshold`, in the layers that make it and in those that take it, and the model is
    rebuilt without it.

    The lasso enters through its gradient, as in the paper: how fast a group shrinks follows from
    the optimizer. Under SGD it is the learning rate times the coefficient at each step, which takes
    many steps at the low rates of fine-tuning; Adam divides by the size of the gradients and
    shrinks groups that the loss does not hold against it by up to the learning rate.
    Around zero a group swings by about what a step moves it, so that it falls below the threshold
    only when the learning rate has become small: a rate that decays removes far more.

    Weights that another callback keeps over a rebuild no longer fit the model:
    `EarlyStopping(restore_best_weights=True)`, `BackupAndRestore`. An interrupted training starts
    again.

    Args:
        ratio: share of the group lasso in the whole loss at the start, in (0, 1).
        threshold: of the largest absolute weight in a group.
        interval: epochs between two reconfigurations.

    Attributes:
        records: a `Reconfiguration` for the start of the last `fit` and each time in it.

    Source: Lym et al., PruneTrain, SC 2019.
    """

    def __init__(self, *, ratio: float = 0.2, threshold: float = 1e-4, interval: int = 10) -> None:
        super().__init__()
        hint = "The paper's is 0.2 to 0.25."
        bounds: dict[str, Any] = {"low": 0.0, "above": True, "high": 1.0, "below": True}
        self.ratio = arguments.number("ratio", ratio, **bounds, hint=hint)
        self.threshold = arguments.number("threshold", threshold, low=0.0, above=True)
        self.interval = arguments.count("interval", interval)
        self.records: list[Reconfiguration] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Refuse what cannot be served; switch the lasso on."""
        model = self.model
        if not isinstance(model, PruneTrainModel):
            raise TypeError(
                "PruneTrainCallback serves models that can be rebuilt. Received: "
                f"{type(model).__name__}. Make one with "
                "elastic_tf.baselines.prunetrain.adapt(model) and compile it."
            )
        if replicas.count(model.distribute_strategy) > 1:
            raise ValueError(
                "PruneTrain runs on one replica: the slots of several are not cut together. "
                f"Received: {replicas.count(model.distribute_strategy)} replicas."
            )
        rebuild.check_slots(model.optimizer, model.trainable_variables)
        model.use_lasso(self.ratio)
        self._trained = 0
        self._is_checked = False
        self.records = [Reconfiguration(0, 0, model.count_params())]

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reconfigure where the interval has passed."""
        if epoch and epoch % self.interval == 0:
            self._reconfigure(epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Look at the coefficient when the first step has set it."""
        if not self._is_checked:
            coefficient = self.model.lasso_coefficient
            if coefficient is None or not 0.0 < coefficient < math.inf:
                raise ValueError(
                    "The group lasso's coefficient follows from the loss of the first step, which "
                    f"must be positive and finite. Received: coefficient={coefficient} from "
                    f"ratio={self.ratio}."
                )
            self._is_checked = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Let the history tell how large the model is."""
        self._trained = epoch + 1
        if logs is not None:
            logs["parameters"] = self.records[-1].parameters

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Reconfigure once more if the interval has just passed; switch the lasso off."""
        if self._trained and self._trained % self.interval == 0:
            self._reconfigure(self._trained)
        self.model.use_lasso(None)

    def _reconfigure(self, epoch: int) -> None:
        removed = self.model.reconfigure(self.threshold)
        self.records.append(Reconfiguration(epoch, removed, self.model.count_params()))


def _callbacks(task: Task) -> list[tf.keras.callbacks.Callback]:
    """The paper's ratio and threshold, reconfigured at the interval of the task."""
    return [PruneTrainCallback(interval=min(task.interval, task.epochs))]


METHODS = (
    Method(
        "prunetrain",
        "all tensors under a group lasso; sparse channels are removed (Lym et al. 2019)",
        _callbacks,
        adapt=adapt,
        can_go_on=False,
    ),
)

"""The callback that makes `fit` a PruneTrain: group lasso, and a smaller model every few epochs."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.baselines.prunetrain import slots
from elastic_tf.costs.flops import Flops, step_flops
from elastic_tf.engine import replicas
from elastic_tf.files.table import Column, format_table

_KEY = "prunetrain"  # in the model's `fit_state`


@dataclasses.dataclass(frozen=True)
class Reconfiguration:
    """The model after channels were removed; the first one is the model at the start.

    Attributes:
        epoch: epochs that had been trained.
        removed: channels removed; one that several layers share counts once.
        parameters: weights of the model, the buffers included.
        channels: output channels left in each convolution and dense layer, by the layer's name.
        coefficient: of the group lasso in the loss; None at the start.
        seconds: wall-clock of deciding and rebuilding; tracing anew falls into the next step.
        flops: operations of one training step on the callback's `batch`; None without one.
    """

    epoch: int
    removed: int
    parameters: int
    channels: dict[str, int]
    coefficient: float | None
    seconds: float
    flops: Flops | None = None


class PruneTrainCallback(tf.keras.callbacks.Callback):
    """Trains under a group lasso; every `interval` epochs removes the channels that became sparse.

    The lasso's coefficient is one for all groups, set in the first step so that the lasso is
    `ratio` of the whole loss, and stays. After every `interval` epochs groups whose weights are all
    below `threshold` are set to zero. A channel is removed when all its groups are, in the layers
    that make it and in those that take it, and the model is rebuilt without it.

    The lasso enters through its gradient, as in the paper: how fast a group shrinks follows from
    the optimizer. Under SGD it is the learning rate times the coefficient at each step, which takes
    many steps at the low rates of fine-tuning; Adam divides by the size of the gradients and
    shrinks groups that the loss does not hold against it by up to the learning rate.
    Around zero a group swings by about what a step moves it, so that it falls below the threshold
    only when the learning rate has become small: a rate that decays removes far more.

    Weights that another callback keeps over a rebuild (`EarlyStopping(restore_best_weights=True)`)
    no longer fit the model.

    Args:
        ratio: share of the group lasso in the whole loss at the start, in (0, 1).
        threshold: of the largest absolute weight in a group.
        interval: epochs between two reconfigurations.
        batch: (x, y), on which the operations of a step are counted; None: they are not.
        verbose: 1 prints a line for each reconfiguration.

    Attributes:
        records: a `Reconfiguration` for the start of the last `fit` and each time in it.

    Source: Lym et al., PruneTrain, SC 2019.
    """

    def __init__(
        self,
        *,
        ratio: float = 0.2,
        threshold: float = 1e-4,
        interval: int = 10,
        batch: tuple[Any, ...] | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        _check(ratio, threshold, interval, batch)
        self.ratio = float(ratio)
        self.threshold = float(threshold)
        self.interval = int(interval)
        self.batch = batch
        self.verbose = verbose
        self.records: list[Reconfiguration] = []

    def summary(self) -> str:
        """A table of the reconfigurations."""
        return format_table([_row(record) for record in self.records], COLUMNS)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Refuse what cannot be served; switch the lasso on."""
        from elastic_tf.baselines.prunetrain.model import (
            PruneTrainModel,  # which imports this module
        )

        model = self.model
        if not isinstance(model, PruneTrainModel):
            raise TypeError(
                "PruneTrainCallback serves models that can be rebuilt. Received: "
                f"{type(model).__name__}. Make one with "
                "elastic_tf.baselines.prunetrain.model.adapt(model) and compile it."
            )
        if replicas.count(model.distribute_strategy) > 1:
            raise ValueError(
                "PruneTrain runs on one replica: the slots of several are not cut together. "
                f"Received: {replicas.count(model.distribute_strategy)} replicas."
            )
        slots.check(model.optimizer, model.trainable_variables)
        model.use_lasso(self.ratio)
        self._trained = 0
        self._pending = False
        self.records = []
        self._record(0, 0, 0.0)
        self._count()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reconfigure where the interval has passed."""
        if not self._trained and _KEY in self.model.fit_state:  # goes on with an interrupted `fit`
            coefficient = self.model.fit_state[_KEY]["coefficient"]
            self.model.use_lasso(self.ratio, coefficient=coefficient)
        if epoch and epoch % self.interval == 0:
            self._reconfigure(epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Look at the coefficient when the first step has set it."""
        if _KEY not in self.model.fit_state:
            coefficient = self.model.lasso_coefficient
            if coefficient is None or not 0.0 < coefficient < float("inf"):
                raise ValueError(
                    "The group lasso's coefficient follows from the loss of the first step, which "
                    f"must be positive and finite. Received: coefficient={coefficient} from "
                    f"ratio={self.ratio}."
                )
            self._remember()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count operations, which is not part of the training."""
        self._trained = epoch + 1
        if self._pending:
            self._count()
        if logs is not None:
            logs["parameters"] = self.records[-1].parameters

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Reconfigure once more if the interval has just passed; switch the lasso off."""
        if self._trained and self._trained % self.interval == 0:
            self._reconfigure(self._trained)
            self._count()
        self.model.use_lasso(None)

    def _reconfigure(self, epoch: int) -> None:
        started = time.perf_counter()
        removed = self.model.reconfigure(self.threshold)
        self._record(epoch, removed, time.perf_counter() - started)
        if _KEY in self.model.fit_state:
            self._remember()

    def _remember(self) -> None:
        """Let the model's checkpoints carry what `fit` needs to go on."""
        self.model.fit_state[_KEY] = {
            "coefficient": self.model.lasso_coefficient,
            "removed": self.model.removed,
        }

    def _record(self, epoch: int, removed: int, seconds: float) -> None:
        record = Reconfiguration(
            epoch=epoch,
            removed=removed,
            parameters=self.model.count_params(),
            channels=channels_left(self.model),
            coefficient=self.model.lasso_coefficient,
            seconds=seconds,
        )
        self.records.append(record)
        self._pending = True
        if self.verbose:
            print(_line(record))

    def _count(self) -> None:
        self._pending = False
        if self.batch is not None:
            flops = step_flops(
                self.model,
                *self.batch[:2],
                sample_weight=self.batch[2] if len(self.batch) > 2 else None,
            )
            self.records[-1] = dataclasses.replace(self.records[-1], flops=flops)


def channels_left(model: Any) -> dict[str, int]:
    """Output channels of each convolution and dense layer of a PruneTrain model."""
    return {
        name: len(site.width[1])
        for name, site in model.channels.sites.items()
        if site.sides and site.width is not None
    }


def _check(ratio: Any, threshold: Any, interval: Any, batch: Any) -> None:
    if not _is_number(ratio) or not 0 < ratio < 1:
        raise ValueError(
            f"`ratio` must be in (0, 1). Received: ratio={ratio!r}. The paper's is 0.2 to 0.25."
        )
    if not _is_number(threshold) or not 0 < threshold < float("inf"):
        raise ValueError(
            f"`threshold` must be above 0. Received: threshold={threshold!r}. The paper's is 1e-4."
        )
    if isinstance(interval, bool) or not isinstance(interval, (int, np.integer)) or interval < 1:
        raise ValueError(
            f"`interval` must be an integer of at least 1. Received: interval={interval!r}."
        )
    if batch is not None and (not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3)):
        raise TypeError(
            "`batch` must be (x, y), or (x, y, sample_weight). Received: "
            f"{type(batch).__name__}. Take one batch of the training data: next(iter(data))."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


COLUMNS = (
    Column("epoch", "epoch"),
    Column("removed", "removed"),
    Column("parameters", "parameters"),
    Column("operations", "operations of a step", ".3e"),
    Column("channels", "channels"),
    Column("seconds", "seconds", ".2f"),
)


def _row(record: Reconfiguration) -> dict[str, Any]:
    return {
        **{column.key: getattr(record, column.key, None) for column in COLUMNS},
        "operations": None if record.flops is None else float(record.flops.total),
        "channels": sum(record.channels.values()),
    }


def _line(record: Reconfiguration) -> str:
    return (
        f"After {record.epoch} epochs: {record.removed} channels removed, {record.parameters} "
        f"parameters, {sum(record.channels.values())} channels left"
    )

"""Measures the steps of one run on one device: profile, operations, ratio to full training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import elastic_tf as et
from elastic_tf import baselines
from elastic_tf.commands.training import measurement
from elastic_tf.commands.training.harness import compiled
from elastic_tf.commands.training.history import summary, trained_masks
from elastic_tf.commands.training.measurement import Cost
from elastic_tf.engine import replicas

_LASSO = 0.2  # share of the group lasso in the loss; any takes as long


class Bench:
    """Of the run's model; with several replicas of one apart that has equal layers.

    Its batches are those of one replica.

    Args:
        settings: of the run.
        strategy: that the run trains under.
        data: of the run.
        model: what is trained.
        build: `(settings, data, weights) -> model`, as it is before the method changes it.
    """

    def __init__(
        self,
        settings: Any,
        strategy: tf.distribute.Strategy,
        data: et.data.ImageData,
        model: et.ElasticModel,
        build: Callable[..., tf.keras.Model],
    ) -> None:
        self._settings = settings
        self._data = data
        self._build = build
        self._is_alone = replicas.count(strategy) == 1
        self._model = model if self._is_alone else None
        self._full: et.ElasticModel | None = None
        self._count: Callable[[np.ndarray], Cost] | None = None

    def profile(self, say: Callable[[str], None]) -> et.TimingProfile:
        """A profile made now."""
        say("Profiling this device ...")
        return et.profile_model(self._own(), *self._batch())

    @property
    def cost(self) -> Callable[[np.ndarray], Cost] | None:
        """Of a step under a mask; None with several replicas."""
        if self._count is None and self._is_alone:
            self._count = self._counter(self._own())
        return self._count

    def result(
        self, history: Sequence[Mapping[str, Any]], targets: Sequence[float]
    ) -> dict[str, Any]:
        """What the history says, and the steps of the run against full ones."""
        full = self._whole()
        speed = measurement.speed(self._epochs(history), full, self._batch())
        row = summary(history, targets)
        flops_ratio = None
        if row["flops"] is not None:
            count = self._count if full is self._model and self._count else self._counter(full)
            whole = count(np.ones(len(full.tensors), bool)).flops.total
            flops_ratio = row["flops"] / (whole * row["steps"])
        return {
            **row,
            "achieved_ratio": speed.ratio,
            "full_step_seconds": speed.full_step_seconds,
            "flops_ratio": flops_ratio,
        }

    def _epochs(
        self, history: Sequence[Mapping[str, Any]]
    ) -> list[tuple[et.ElasticModel, np.ndarray]]:
        """What each epoch trained."""
        own = self._own()
        removed = getattr(own, "removed", None)
        if removed is None:
            models = dict.fromkeys({epoch["rebuilds"] for epoch in history}, own)
        else:  # PruneTrain: the networks that it had, and the group lasso in the loss
            models = {}
            for rebuilds in {epoch["rebuilds"] for epoch in history}:
                models[rebuilds] = self._compiled(baselines.get(self._settings.method))
                for labels in removed[:rebuilds]:
                    models[rebuilds].remove(labels)
                models[rebuilds].use_lasso(_LASSO)
        return [
            (models[epoch["rebuilds"]], mask)
            for epoch, mask in zip(history, trained_masks(history))
        ]

    def _counter(self, model: et.ElasticModel) -> Callable[[np.ndarray], Cost]:
        data = self._data
        labels = data.classes if data.one_hot else None
        return measurement.counter(model, data.image_shape, self._settings.batch_size, labels)

    def _own(self) -> et.ElasticModel:
        """The run's model, or its like on one device."""
        if self._model is None:
            self._model = self._compiled(baselines.get(self._settings.method))
        return self._model

    def _whole(self) -> et.ElasticModel:
        """What full training trains."""
        if baselines.get(self._settings.method).adapt is baselines.get("full").adapt:
            return self._own()
        if self._full is None:
            self._full = self._compiled(baselines.get("full"))
        return self._full

    def _compiled(self, method: baselines.Method) -> et.ElasticModel:
        settings = self._settings
        model = method.adapt(self._build(settings, self._data, "none"))
        return compiled(
            model, settings.optimizer, settings.learning_rate, one_hot=self._data.one_hot
        )

    def _batch(self) -> tuple[Any, Any]:
        size = self._settings.batch_size
        x, y = next(iter(self._data.train))
        return x[:size], y[:size]

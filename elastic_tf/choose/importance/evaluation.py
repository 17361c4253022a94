"""Passes over a probe that leave the model as it was: gradients, and the update made from them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.choose.importance.probe import size_of
from elastic_tf.stack import compiled_loss, never_differentiated, scale_of
from elastic_tf.train import optimizers
from elastic_tf.train.engine import replicas
from elastic_tf.train.engine.checks import batch_explained
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.snapshot import kept
from elastic_tf.train.inputs.batches import as_batch

# Traces are kept for so many shapes of batches; they hold memory.
_MOST_TRACES = 8

Batches = Sequence[tuple[float, Any]]


def as_probe(x: Any, y: Any, sample_weight: Any = None) -> tuple[Any, ...]:
    """x, y and sample weights (or None) as tensors."""
    return (*as_batch(x, y, sample_weight, as_fit=True), None)[:3]


def cut(probe: Any, part: slice) -> Any:
    """Those samples of it."""
    return tf.nest.map_structure(lambda one: None if one is None else one[part], probe)


def batches_of(probe: Any, size: int | None) -> Batches:
    """(share of the samples, (x, y, sample_weight)) of each batch; one batch if None."""
    count = size_of(probe)
    size = count if size is None else arguments.count("micro_batch_size", size)
    starts = range(0, count, size)
    return [((min(k + size, count) - k) / count, cut(probe, slice(k, k + size))) for k in starts]


class Evaluator:
    """The traced passes of one compiled model; every call puts back all that it changed."""

    def __init__(self, model: ElasticMixin) -> None:
        # The evaluator is stored on the model: a strong reference back would be a cycle.
        self._model = weakref.ref(model)
        self._compiled = _compiled(model)
        with model.distribute_strategy.scope():
            optimizers.build(model.optimizer, model.trainable_variables)
        self._pass = _traced(self._trace_gradients)
        self._update = _traced(self._trace_update)

    @classmethod
    def of(cls, model: ElasticMixin) -> Evaluator:
        """The model's evaluator; a new one if it was compiled or other layers are trainable."""
        evaluator = model.__dict__.get("_evaluator")
        if (
            evaluator is None
            or [*map(id, evaluator._compiled)] != [*map(id, _compiled(model))]
            or evaluator._pass.experimental_get_tracing_count() > _MOST_TRACES
        ):
            evaluator = cls(model)
            # Past Keras' __setattr__, which would track it and save it with the model.
            object.__setattr__(model, "_evaluator", evaluator)
        return evaluator

    def gradients(self, batches: Batches) -> list[tf.Tensor]:
        """Gradients of the mean loss over the batches; 0 for tensors that it does not depend on.

        Where they overflow under a loss scale, it is halved until they do not, as training would
        do; the optimizer's own scale stays.
        """
        graphs = set()
        for _, data in batches:
            with batch_explained(data):
                graphs.add(self._pass.get_concrete_function(data).graph)
        scale = scale_of(self.model.optimizer)
        with kept(self.model, graphs):
            found = self._mean(batches)
            if scale is None:
                return found
            before = scale.numpy()
            try:
                while scale.numpy() > 1.0 and not all(np.isfinite(part).all() for part in found):
                    scale.assign(scale / 2.0)
                    found = self._mean(batches)
            finally:
                scale.assign(before)
            return found

    def decrease(
        self, update: list[tf.Tensor], gradients: Callable[[], list[tf.Tensor]]
    ) -> np.ndarray:
        """-sum(gradients() * dw) of each tensor, called when the change dw for `update` is made."""
        graph = self._update.get_concrete_function(update).graph
        with kept(self.model, [graph]):
            variables = self.model.tensors
            old = [variable.read_value() for variable in variables]
            self._update(update)
            decreases = [
                -float(tf.reduce_sum(part * tf.cast(variable.read_value() - before, part.dtype)))
                for part, variable, before in zip(gradients(), variables, old)
            ]
            return np.array(decreases)

    @property
    def model(self) -> Any:
        return self._model()

    def _mean(self, batches: Batches) -> list[tf.Tensor]:
        """The gradients, in one go."""
        total: list[tf.Tensor] = []
        for share, data in batches:
            with batch_explained(data):
                loss, gradients = self._pass(data)
            if not math.isfinite(loss):
                raise ValueError(
                    f"The loss on the probe must be finite. Received: loss={float(loss)}. Lower "
                    "the learning rate, or look at the probe's samples."
                )
            if share < 1.0:
                gradients = [share * gradient for gradient in gradients]
            total = [a + b for a, b in zip(total, gradients)] if total else gradients
        return total

    def _trace_gradients(self, data: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with never_differentiated():
            loss, *gradients = replicas.sum_of_shares(
                self.model.distribute_strategy, self._loss_and_gradients, data
            )
        return loss, gradients

    def _loss_and_gradients(self, data: Any) -> list[tf.Tensor]:
        tensors = self.model.tensors
        with self.model._elastic.planned(None):  # exact ones, whatever is trained now
            step, gradients = self.model.gradients(data, tensors)
        found = (tf.zeros_like(v) if g is None else g for v, g in zip(tensors, gradients))
        return [step.loss, *map(tf.convert_to_tensor, found)]

    def _trace_update(self, gradients: list[tf.Tensor]) -> None:
        with never_differentiated():
            optimizer, variables = self.model.optimizer, self.model.tensors
            replicas.run_on_each(
                self.model.distribute_strategy,
                lambda parts: optimizers.apply_selected(optimizer, parts, variables),
                gradients,
            )


def _traced(function: Any) -> Any:
    traced = tf.function(function)
    # A trace for each shape of batch is meant here; TensorFlow 2.15 would warn of retracing.
    traced._omit_frequent_tracing_warning = True
    return traced


def _compiled(model: ElasticMixin) -> tuple:
    """What the traces were made from; kept alive, so that identity is telling."""
    return (model.optimizer, compiled_loss(model), *model.tensors)

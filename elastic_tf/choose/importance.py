"""Importance: how much the loss is expected to fall when a tensor is trained.

Every measure is called `(model, x, y, *, ...)`, returns float64 of shape (N,) in forward order, and
leaves the model, its optimizer and all random generators as they were, bit for bit. A function of
your own with that signature serves as well. Where it can do without `x` and `y`, no probe is drawn.
An attribute `strategy` is that of `select_tensors`, else "exact".
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.choose.probe import size_of
from elastic_tf.plan import layers_of
from elastic_tf.stack import compiled_loss, never_differentiated, scale_of
from elastic_tf.train import optimizers
from elastic_tf.train.batches import as_batch
from elastic_tf.train.engine.checks import batch_explained
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.tracing import host_generators_kept, kept

__all__ = ["depth", "gradient_magnitude", "loss_decrease", "paper", "weight_magnitude"]

_READINGS = ("before", "after", "other")
_MOST_TRACES = 8  # are kept, for so many shapes of batches; they hold memory

Batches = Sequence[tuple[float, Any]]


def loss_decrease(
    model: ElasticMixin,
    x: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    gradient: str = "other",
    micro_batch_size: int | None = None,
) -> np.ndarray:
    """Decrease of the loss to first order when the optimizer makes its next update.

    importance[k] = -sum(dL/dw_k * dw_k), dw the change that the compiled optimizer would make to
    all tensors, with its present slots and learning rate. 0 where the loss does not depend on k.

    Where the gradient dL/dw is taken:

    * "other": before the update, on the half of the probe that dw does not come from, averaged
      over both ways round: the noise of the batch is not in the product. A probe of one sample
      has no other half: "before" is taken then.
    * "before": before the update, on the same samples (Eq. 5 with c = 0).
    * "after": after the update, on the same samples (as the paper's released code does). Negative
      wherever the step overshoots.

    Args:
        model: a compiled elastic model.
        x: inputs of the probe; arrays or a structure of arrays, samples first.
        y: targets of the probe.
        sample_weight: weights of the samples.
        gradient: one of the three readings above.
        micro_batch_size: samples in one pass; all when None.

    Returns:
        float64, shape (N,), forward order; larger is better, may be negative.

    Raises:
        ValueError: the probe is empty, or its loss or a gradient is not finite.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Eq. (2) and (5).
    """
    arguments.elastic(model, compiled=True)
    arguments.choice("gradient", gradient, _READINGS)
    parts = [as_probe(x, y, sample_weight)]
    if gradient == "other" and size_of(parts[0]) > 1:
        parts = [cut(parts[0], slice(first, None, 2)) for first in (0, 1)]
    batches = [batches_of(part, micro_batch_size) for part in parts]
    with host_generators_kept(model):
        evaluator = Evaluator.of(model)
        found = [evaluator.gradients(part) for part in batches]
        is_after = gradient == "after"
        worth = evaluator.decrease(
            found[0], lambda: evaluator.gradients(batches[0]) if is_after else found[-1]
        )
        if len(parts) == 2:
            worth = 0.5 * (worth + evaluator.decrease(found[1], lambda: found[0]))
    return _finite(worth, model)


#: ElasticTrainer's own way: `loss_decrease` after the update, and its dynamic program.
paper = functools.partial(loss_decrease, gradient="after")
paper.strategy = "paper"  # type: ignore[attr-defined]


def gradient_magnitude(
    model: ElasticMixin,
    x: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    micro_batch_size: int | None = None,
) -> np.ndarray:
    """Sum of the absolute gradient of each tensor over the probe ("Grad." in Sec. 8.4)."""
    arguments.elastic(model, compiled=True)
    batches = batches_of(as_probe(x, y, sample_weight), micro_batch_size)
    with host_generators_kept(model):
        gradients = Evaluator.of(model).gradients(batches)
    magnitudes = [float(tf.reduce_sum(tf.abs(gradient))) for gradient in gradients]
    return _finite(np.array(magnitudes), model)


def depth(model: ElasticMixin, x: Any = None, y: Any = None) -> np.ndarray:
    """1 to N, without the probe: the last tensors that fit are trained.

    In forward order, but scale and offset of batch normalisations before all others: they bring
    next to nothing, and on the statistics of the batch a fifth to a third of a step goes into them.
    """
    arguments.elastic(model)
    normalisation = tf.keras.layers.BatchNormalization
    first = [isinstance(layer, normalisation) for layer in layers_of(model)]
    rank = np.empty(len(first))
    rank[np.argsort(np.invert(first), kind="stable")] = np.arange(1.0, len(first) + 1.0)
    return rank


depth.strategy = "order"  # type: ignore[attr-defined]


def weight_magnitude(model: ElasticMixin, x: Any = None, y: Any = None) -> np.ndarray:
    """Sum of the absolute weights of each tensor, without the probe ("Weight" in Sec. 8.4)."""
    arguments.elastic(model)
    return np.array([float(np.abs(v.numpy()).sum(dtype=np.float64)) for v in model.tensors])


def _finite(worth: np.ndarray, model: ElasticMixin) -> np.ndarray:
    if not np.isfinite(worth).all():
        k = int(np.flatnonzero(~np.isfinite(worth))[0])
        raise ValueError(
            f"The gradient on the probe must be finite. Received: importance {worth[k]} of tensor "
            f"{k}, {model.tensors[k].name!r}. Lower the learning rate or clip the gradients."
        )
    return worth


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
        tensors = self.model.tensors
        # exact ones, whatever is trained now
        with never_differentiated(), self.model._elastic.planned(None):
            step, gradients = self.model.gradients(data, tensors)
        found = (tf.zeros_like(v) if g is None else g for v, g in zip(tensors, gradients))
        return step.loss, [*map(tf.convert_to_tensor, found)]

    def _trace_update(self, gradients: list[tf.Tensor]) -> None:
        with never_differentiated():
            optimizers.apply_selected(self.model.optimizer, gradients, self.model.tensors)


def _traced(function: Any) -> Any:
    traced = tf.function(function)
    # A trace for each shape of batch is meant here; TensorFlow 2.15 would warn of retracing.
    traced._omit_frequent_tracing_warning = True
    return traced


def _compiled(model: ElasticMixin) -> tuple:
    """What the traces were made from; kept alive, so that identity is telling."""
    return (model.optimizer, compiled_loss(model), *model.tensors)

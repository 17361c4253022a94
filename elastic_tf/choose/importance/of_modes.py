"""The worth of training tensors in other modes: how much of the true gradient each mode keeps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.choose.importance.evaluation import Batches, Evaluator, as_probe, batches_of
from elastic_tf.choose.importance.measures import loss_decrease
from elastic_tf.choose.importance.tracking import Worths, cosine_similarity
from elastic_tf.plan import EXACT, Plan
from elastic_tf.stack import never_differentiated
from elastic_tf.train.engine import modes as known
from elastic_tf.train.engine import replicas
from elastic_tf.train.engine.snapshot import host_generators_kept, kept

if TYPE_CHECKING:
    from elastic_tf.model import ElasticModel


def of_modes(
    model: ElasticModel,
    x: Any,
    y: Any,
    modes: Sequence[str],
    *,
    sample_weight: Any = None,
    importance: Callable[..., np.ndarray] | np.ndarray = loss_decrease,
    micro_batch_size: int | None = None,
) -> Worths:
    """Importance times the cosine of a mode's gradient and the exact one, on one probe.

    Of some channels that is the root of their share of the squared gradient, the best neighbours
    taken; of a gradient that points away, 0. A negative importance falls by as much.

    Args:
        model: compiled elastic model.
        x: inputs of the probe; arrays or a structure of arrays, samples first.
        y: targets of the probe.
        modes: names of the M modes.
        sample_weight: weights of the samples.
        importance: of exact tensors; a function like those of `et.importance`, which gets
            the next argument and the last one if it has them, or its result, shape (N,).
        micro_batch_size: samples in one pass; all when None.

    Raises:
        ValueError: no kernel can have a mode, the probe is not one, or there are several replicas.
    """
    arguments.elastic(model, compiled=True)
    if (count := replicas.count(model.distribute_strategy)) > 1:
        raise ValueError(
            f"Modes are compared on one device. Received: a model on {count} replicas. Give an "
            "importance of exact tensors."
        )
    plans = {name: known.everywhere(model, name) for name in modes}
    batches = batches_of(as_probe(x, y, sample_weight), micro_batch_size)
    exact: Any = importance
    if callable(importance):
        taken = inspect.signature(importance).parameters
        options = {"sample_weight": sample_weight, "micro_batch_size": micro_batch_size}
        exact = importance(model, x, y, **{k: v for k, v in options.items() if k in taken})
    exact = arguments.numbers("importance", exact, shape=(len(model.tensors),))
    worth = np.zeros((len(exact), 1 + len(plans)))
    worth[:, 0] = exact
    channels: dict[int, np.ndarray] = {}
    with host_generators_kept(model):
        evaluator = Evaluator.of(model)
        true = evaluator.by_tensor(evaluator.gradients(batches))
        for column, (name, plan) in enumerate(plans.items(), 1):
            axes = known.channel_axes(model, name)
            channels.update({k: _energy(true[k], axis) for k, axis in axes.items() if k in true})
            found = {} if axes else _gradients(model, plan, batches)
            for k in true.keys() & set(np.flatnonzero(plan.modes != EXACT).tolist()):
                if k in axes:
                    keeps = _best_share(channels[k], len(plan.channels[k])) ** 0.5
                else:
                    keeps = _cosine(true[k], found[k])
                worth[k, column] = exact[k] - abs(exact[k]) * (1.0 - max(keeps, 0.0))
    return Worths(worth, tuple(plans), channels)


def _gradients(model: ElasticModel, plan: Plan, batches: Batches) -> dict[int, tf.Tensor]:
    """The gradients of a step under the plan, by index of the tensor; leaves nothing behind."""

    def gradients(data: Any) -> list[Any]:
        with never_differentiated(), model._planned(plan):
            return model.gradients(data, model.tensors)[1]

    traced = tf.function(gradients)
    total: dict[int, tf.Tensor] = {}
    with kept(model, {traced.get_concrete_function(data).graph for _, data in batches}):
        for share, data in batches:
            for k, gradient in enumerate(traced(data)):
                if gradient is not None:
                    part = share * tf.convert_to_tensor(gradient)
                    total[k] = total[k] + part if k in total else part
    return total


def _energy(gradient: tf.Tensor, axis: int) -> np.ndarray:
    """The squared gradient of each channel."""
    others = [k for k in range(gradient.shape.rank) if k != axis]
    return tf.reduce_sum(tf.square(tf.cast(gradient, tf.float64)), others).numpy()


def _best_share(energy: np.ndarray, count: int) -> float:
    """The share that the best so many neighbours have; 1 of nothing."""
    whole = np.append(0.0, np.cumsum(energy))
    return float((whole[count:] - whole[:-count]).max() / whole[-1]) if whole[-1] else 1.0


def _cosine(one: tf.Tensor, two: tf.Tensor) -> float:
    flat = (np.ravel(tf.cast(part, tf.float64)) for part in (one, two))
    return cosine_similarity(*flat)

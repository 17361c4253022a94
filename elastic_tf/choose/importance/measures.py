"""Importance: how much the loss is expected to fall when a tensor is trained.

Every function here is called `(model, x, y, *, ...)`, returns float64 of shape (N,) in forward
order, and leaves the model, its optimizer and all random generators as they were, bit for bit.
A function of your own with that signature serves as well. Where it can do without `x` and `y`, no
probe is drawn. An attribute `strategy` is that of `select_tensors`, else "exact".
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.choose.importance.evaluation import Evaluator, as_probe, batches_of, cut
from elastic_tf.choose.importance.probe import size_of
from elastic_tf.plan import layers_of
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.snapshot import host_generators_kept

_READINGS = ("before", "after", "other")


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

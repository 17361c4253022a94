"""Importance: how much the loss is expected to fall when a tensor is trained.

Every function here is called `(model, x, y, *, ...)`, returns float64 of shape (N,) in forward
order, and leaves the model, its optimizer and all random generators as they were, bit for bit.
A function of your own with that signature serves as well.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elastic_tf.evaluation import Evaluator, Samples
from elastic_tf.state import host_generators_kept

if TYPE_CHECKING:
    from elastic_tf.model import ElasticModel

_READINGS = ("before", "after", "other")


def loss_decrease(
    model: ElasticModel,
    x: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    gradient: str = "other",
    gradient_data: Any = None,
    micro_batch_size: int | None = None,
) -> np.ndarray:
    """Decrease of the loss to first order when the optimizer makes its next update.

    importance[k] = -sum(dL/dw_k * dw_k), dw the update that the compiled optimizer would make to
    all tensors, with its present slots and learning rate.

    Where the gradient dL/dw is taken:
        "other": before the update, on the half of the probe that dw does not come from, averaged
            over both ways round: the noise of the batch is not in the product. A probe of one
            sample has no other half: "before" is taken then, with a warning.
        "before": before the update, on the same samples (Eq. 5 with c = 0).
        "after": after the update, on the same samples, with the same augmentation and dropout
            (as the paper's released code does). Negative wherever the step overshoots.

    Args:
        model: a compiled elastic model.
        x: inputs of the probe; arrays or a structure of arrays, samples first.
        y: targets of the probe.
        sample_weight: weights of the samples.
        gradient: one of the three readings above.
        gradient_data: samples that dL/dw is taken on before the update, as (x, y) or
            (x, y, sample_weight), dw coming from the whole probe: validation data, say. None:
            the other half of the probe. For the reading "other" alone.
        micro_batch_size: samples in one pass; the whole probe (or half of it) when None. Batch
            normalisation sees micro-batches as it sees the batches of training.

    Returns:
        float64, shape (N,), forward order; larger is better, may be negative.

    Raises:
        ValueError: the probe is empty, its loss or a gradient is not finite, or an option is
            unknown.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Eq. (2) and (5).
    """
    if gradient not in _READINGS:
        raise ValueError(f"`gradient` must be one of {_READINGS}. Received: gradient={gradient!r}.")
    if gradient_data is not None and gradient != "other":
        raise ValueError(
            "`gradient_data` needs the reading 'other'. Received: "
            f"gradient={gradient!r}. Leave one of them out."
        )
    samples = Samples(x, y, sample_weight)
    if gradient == "other" and gradient_data is None and samples.count == 1:
        warnings.warn(
            "A probe of one sample has no other half: the gradient is taken before the update, "
            "on the same sample. Use a probe of at least two samples.",
            stacklevel=2,
        )
        gradient = "before"
    with host_generators_kept(model):
        evaluator = Evaluator.of(model)
        if gradient_data is not None:
            parts = (samples, Samples(*gradient_data))
            one, two = (evaluator.gradients(part.batches(micro_batch_size)) for part in parts)
            worth = evaluator.decrease(one, two)
        elif gradient == "other":
            halves = [half.batches(micro_batch_size) for half in samples.halves()]
            one, two = (evaluator.gradients(half) for half in halves)
            worth = 0.5 * (evaluator.decrease(one, two) + evaluator.decrease(two, one))
        elif gradient == "before":
            here = evaluator.gradients(samples.batches(micro_batch_size))
            worth = evaluator.decrease(here, here)
        else:
            batches = samples.batches(micro_batch_size)
            here = evaluator.gradients(batches, part="first")
            worth = evaluator.decrease(here, None, batches)
    return _finite(worth, model)


def gradient_magnitude(
    model: ElasticModel,
    x: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    micro_batch_size: int | None = None,
) -> np.ndarray:
    """Sum of the absolute gradient of each tensor over the probe.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 8.4 ("Grad.").
    """
    samples = Samples(x, y, sample_weight)
    with host_generators_kept(model):
        evaluator = Evaluator.of(model)
        gradients = evaluator.gradients(samples.batches(micro_batch_size))
        magnitudes = [float(tf.reduce_sum(tf.abs(gradient))) for gradient in gradients]
        worth = evaluator.in_forward_order(magnitudes)
    return _finite(worth, model)


def weight_magnitude(model: ElasticModel, x: Any = None, y: Any = None) -> np.ndarray:
    """Sum of the absolute weights of each tensor; the probe is not looked at.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 8.4 ("Weight").
    """
    return np.array([float(np.abs(v.numpy()).sum(dtype=np.float64)) for v in model.tensors])


def random(
    model: ElasticModel, x: Any = None, y: Any = None, *, seed: int | None = None
) -> np.ndarray:
    """Uniform importance in (0, 1]; the same for the same `seed`."""
    return 1.0 - np.random.default_rng(seed).random(len(model.tensors))


def _finite(worth: np.ndarray, model: ElasticModel) -> np.ndarray:
    if not np.isfinite(worth).all():
        k = int(np.flatnonzero(~np.isfinite(worth))[0])
        raise ValueError(
            f"The gradient on the probe must be finite. Received: importance {worth[k]} of tensor "
            f"{k}, {model.tensors[k].name!r}. Lower the learning rate or clip the gradients."
        )
    return worth

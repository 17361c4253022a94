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

from elastic_tf import arguments
from elastic_tf.engine.snapshot import host_generators_kept
from elastic_tf.importance import micro_batches
from elastic_tf.importance.evaluation import Evaluator, Samples

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
    steps: int = 1,
    micro_batch_size: int | None = None,
) -> np.ndarray:
    """Decrease of the loss to first order when the optimizer makes its next updates.

    importance[k] = -sum(dL/dw_k * dw_k), dw the change that the compiled optimizer would make to
    all tensors, with its present slots and learning rate, in one update or several.

    Where the gradient dL/dw is taken:

    * "other": before the update, on the half of the probe that dw does not come from, averaged
      over both ways round: the noise of the batch is not in the product. A probe of one sample
      has no other half: "before" is taken then, with a warning.
    * "before": before the update, on the same samples (Eq. 5 with c = 0).
    * "after": after the update, on the same samples, with the same augmentation and dropout (as
      the paper's released code does). Negative wherever the step overshoots.

    "other" and "before" foretell alike what training a set of tensors wins, "after" far worse:
    `experiments/results/importance.json`.

    Args:
        model: a compiled elastic model.
        x: inputs of the probe; arrays or a structure of arrays, samples first.
        y: targets of the probe.
        sample_weight: weights of the samples.
        gradient: one of the three readings above.
        gradient_data: samples that dL/dw is taken on before the update, as (x, y) or
            (x, y, sample_weight), dw coming from the whole probe: validation data, say. None:
            the other half of the probe. For the reading "other" alone.
        steps: updates made one after the other, from equal parts of the probe (or half of it); dw
            is the change of them all. With the training data for a probe and as many steps as an
            epoch has it is the update of an epoch (Sec. 3.1).
        micro_batch_size: samples in one pass; all samples of an update when None. Batch
            normalisation sees micro-batches as it sees the batches of training. Halved, with a
            warning, for as long as memory does not suffice.

    Returns:
        float64, shape (N,), forward order; larger is better, may be negative.

    Raises:
        ValueError: the probe is empty or too small for the steps, its loss or a gradient is not
            finite, or an option is unknown.
        MemoryError: not even a sample at a time fits into memory.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Eq. (2) and (5).
    """
    arguments.elastic(model, compiled=True)
    arguments.choice("gradient", gradient, _READINGS)
    if gradient_data is not None and gradient != "other":
        raise ValueError(
            "`gradient_data` needs the reading 'other'. Received: "
            f"gradient={gradient!r}. Leave one of them out."
        )
    others = None
    if gradient_data is not None:
        parts = arguments.items("gradient_data", gradient_data, least=2, what="(x, y)")
        others = Samples(*parts[:3], name="gradient_data")
    samples = Samples(x, y, sample_weight)
    if gradient == "other" and others is None and samples.count == 1:
        warnings.warn(
            "A probe of one sample has no other half: the gradient is taken before the update, "
            "on the same sample. Use a probe of at least two samples.",
            stacklevel=2,
        )
        gradient = "before"
    halves = samples.halves() if gradient == "other" and others is None else ()

    def worth_in(size: int | None) -> np.ndarray:
        if others is not None:
            here = _Part(evaluator, samples, steps, size)
            return here.decrease(evaluator.gradients(others.batches(size)))
        if halves:
            one, two = (_Part(evaluator, half, steps, size) for half in halves)
            return 0.5 * (one.decrease(two.gradients) + two.decrease(one.gradients))
        if gradient == "before":
            here = _Part(evaluator, samples, steps, size)
            return here.decrease(here.gradients)
        groups = samples.updates(steps, size)
        first = evaluator.gradients(groups[0], part="first")
        batches = [(share / steps, data) for group in groups for share, data in group]
        return evaluator.decrease(first, None, batches, then=groups[1:])

    with host_generators_kept(model):
        evaluator = Evaluator.of(model)
        most = max(part.count for part in (*(halves or [samples]), *([others] if others else [])))
        worth = micro_batches.evaluated(evaluator, worth_in, micro_batch_size, most)
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
    arguments.elastic(model, compiled=True)
    samples = Samples(x, y, sample_weight)
    with host_generators_kept(model):
        evaluator = Evaluator.of(model)

        def worth_in(size: int | None) -> np.ndarray:
            gradients = evaluator.gradients(samples.batches(size))
            magnitudes = [float(tf.reduce_sum(tf.abs(gradient))) for gradient in gradients]
            return evaluator.in_forward_order(magnitudes)

        worth = micro_batches.evaluated(evaluator, worth_in, micro_batch_size, samples.count)
    return _finite(worth, model)


def weight_magnitude(model: ElasticModel, x: Any = None, y: Any = None) -> np.ndarray:
    """Sum of the absolute weights of each tensor; the probe is not looked at.

    Source: Huang et al., ElasticTrainer, MobiSys 2023, Sec. 8.4 ("Weight").
    """
    arguments.elastic(model)
    return np.array([float(np.abs(v.numpy()).sum(dtype=np.float64)) for v in model.tensors])


def random(
    model: ElasticModel, x: Any = None, y: Any = None, *, seed: int | None = None
) -> np.ndarray:
    """Uniform importance in (0, 1]; the same for the same `seed`."""
    arguments.elastic(model)
    if seed is not None:
        seed = arguments.count("seed", seed, least=0, most=2**64 - 1)
    return 1.0 - np.random.default_rng(seed).random(len(model.tensors))


class _Part:
    """A part of the probe: the updates made from it, and its gradients before them."""

    def __init__(
        self, evaluator: Evaluator, samples: Samples, steps: int, size: int | None
    ) -> None:
        groups = samples.updates(steps, size)
        self._evaluator = evaluator
        self._first, self._then = evaluator.gradients(groups[0]), groups[1:]
        self.gradients = self._first
        if steps > 1:
            self.gradients = evaluator.gradients(samples.batches(size))

    def decrease(self, gradients: list[Any]) -> np.ndarray:
        """The decrease by this part's updates as the gradients see it."""
        return self._evaluator.decrease(self._first, gradients, then=self._then)


def _finite(worth: np.ndarray, model: ElasticModel) -> np.ndarray:
    if not np.isfinite(worth).all():
        k = int(np.flatnonzero(~np.isfinite(worth))[0])
        raise ValueError(
            f"The gradient on the probe must be finite. Received: importance {worth[k]} of tensor "
            f"{k}, {model.tensors[k].name!r}. Lower the learning rate or clip the gradients."
        )
    return worth

"""A few pictures of new things: a network adapts, and recognises them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.fewshot.augmentation import augmented
from elastic_tf.fewshot.episodes import checked
from elastic_tf.fewshot.protonet import ProtoNet
from elastic_tf.fewshot.rule import Budgets, paper_rule
from elastic_tf.memory.kernels import KernelCosts
from elastic_tf.plan import Plan, as_plan

Rule = Callable[[Mapping[int, np.ndarray], KernelCosts, Budgets], Plan]


@dataclass(frozen=True)
class Adapted:
    """A network that knows new classes; it holds until its weights are trained again.

    Attributes:
        net: network and distance.
        classes: what the classes are called; (way,).
        prototypes: (way, width).
        plan: what was trained; None if nothing was.
        memory: bytes that training takes, by `KernelCosts.memory`, for one image at a time.
        macs: multiply-adds of the backward pass of one image.
        kept: bytes of activations of the frozen part, of all images; in memory, or in a file where
            they take more than a quarter of it.
        selection_seconds: time that choosing the plan took.
        seconds: time that everything took.
    """

    net: ProtoNet
    classes: np.ndarray
    prototypes: np.ndarray
    plan: Plan | None
    memory: int
    macs: int
    kept: int
    selection_seconds: float
    seconds: float

    def probabilities(self, images: Any) -> np.ndarray:
        """How probable each class is for each image; float32 (n, way)."""
        features = self.net.features(arguments.samples("images", images))
        return tf.nn.softmax(self.net.logits(features, self.prototypes)).numpy()

    def predict(self, images: Any) -> np.ndarray:
        """The class of each image, as it was called; (n,)."""
        return self.classes[self.probabilities(images).argmax(axis=1)]


def adapt(
    model: tf.keras.Model | ProtoNet,
    images: Any,
    labels: Any,
    *,
    memory: int | str | None = None,
    compute: float = 0.15,
    steps: int = 40,
    views: int | None = 8,
    learning_rate: float = 1e-3,
    inspect: float = 0.4,
    rule: Rule = paper_rule,
    plan: Plan | np.ndarray | None = None,
    flip: bool = False,
    seed: int = 0,
    verbose: int = 0,
) -> Adapted:
    """Adapt a network to a few images of each of some classes.

    Once, the Fisher information of the last kernels is taken, on the images and changed ones as
    queries, and `rule` chooses what is trained. Then Adam trains the chosen channels to find
    changed images by the prototypes of the given ones.

    Args:
        model: a network of features, a classifier, whose last dense layer is left out, or a
            ProtoNet. Its weights are trained in place.
        images: (n, height, width, channels).
        labels: whole numbers or texts, (n,).
        memory: most bytes of training, or a text like "1 MiB", by `KernelCosts.memory` for one
            image at a time. None: any.
        compute: most multiply-adds of a backward pass, as a share of the whole network's.
        steps: of training; 0 leaves the network as it is.
        views: changed versions of the images, drawn once; what lies before the first trained
            kernel is computed once for each. None: new ones in every step.
        learning_rate: of Adam.
        inspect: the part of the kernels, the last ones, that may be trained.
        rule: (worth, costs, budgets) -> plan, as `paper_rule`.
        plan: what to train, in the place of all the choosing; a bool mask does too.
        flip: whether a mirrored thing is the same thing.
        seed: of the changes.
        verbose: 1 shows a progress bar.

    Returns:
        What predicts.

    Raises:
        ValueError: one class only, budgets that nothing fits into, arrays that do not fit together.

    Source: Kwon et al., TinyTrain, ICML 2024, Sec. 2.2, Algorithm 1, App. C.
    """
    started = time.perf_counter()
    arguments.count("steps", steps, least=0)
    if views is not None:
        arguments.count("views", views)
    arguments.number("inspect", inspect, low=0.0, high=1.0, above=True)
    x, named = checked(images, labels)
    if x.ndim != 4:
        raise ValueError(
            "`images` must have shape (n, height, width, channels). Received: shape "
            f"{x.shape}. A single channel is images[..., None]."
        )
    classes, y = np.unique(named, return_inverse=True)
    net, rng = ProtoNet.of(model), np.random.default_rng(seed)
    costs, chosen = net.costs, None
    if steps and plan is not None:
        chosen = as_plan(plan, len(costs.sizes))
    elif steps:
        budgets = Budgets.of(costs, memory, compute)
        chosen = rule(_worth(net, x, y, augmented(x, rng, flip), inspect), costs, budgets)
    selected, kept_bytes = time.perf_counter(), 0
    shares = np.zeros(len(costs.sizes)) if chosen is None else costs.shares(chosen)
    if chosen is not None:
        net.adam(arguments.rate("learning_rate", learning_rate))
        net.model.set_plan(chosen)

        suffix, versions, count = net.suffix(chosen), min(views or steps, steps), len(x)
        drawn = (augmented(x, rng, flip) for _ in range(versions))
        kept = suffix.activations(itertools.chain([x], drawn), (1 + versions) * count)
        kept_bytes = sum(one.nbytes for one in kept)
        labels, first = np.concatenate([y, -1 - y]), np.arange(count)
        bar = tf.keras.utils.Progbar(steps, verbose=verbose, stateful_metrics=["loss", "accuracy"])
        for step in range(steps):
            rows = np.append(first, first + count * (1 + step % versions))
            bar.add(1, suffix.step(labels, [one[rows] for one in kept]).items())
    prototypes = net.prototypes(net.features(x), y, len(classes)).numpy()
    ended = time.perf_counter()
    return Adapted(
        net,
        classes,
        prototypes,
        chosen,
        costs.memory(shares),
        costs.backward_macs(shares),
        kept_bytes,
        selected - started,
        ended - started,
    )


def _worth(
    net: ProtoNet, x: np.ndarray, y: np.ndarray, queries: np.ndarray, inspect: float
) -> dict[int, np.ndarray]:
    """Fisher information of the channels of the last kernels."""
    kernels = np.flatnonzero(net.costs.macs).tolist()
    last = tuple(kernels[-max(1, round(inspect * len(kernels))) :])
    return net.fisher(last, queries, y, net.prototypes(net.features(x), y, y.max() + 1))

"""A few pictures of each class: a network adapts to them, and recognises new ones.

In: a network, and some images of new classes. Out: the network adapted to them, within memory and
multiply-adds, and what it predicts. The method is TinyTrain (Kwon et al., ICML 2024).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.methods.kernels import Budgets, KernelCosts, paper_rule
from elastic_tf.methods.protonet import ProtoNet
from elastic_tf.plan import Plan, as_plan

__all__ = ["Adapted", "Budgets", "ProtoNet", "adapt", "paper_rule"]

Rule = Callable[[Mapping[int, np.ndarray], KernelCosts, Budgets], Plan]
_SHIFT = 8  # the part of a side that images are moved by at most is 1 / _SHIFT
_COVERED = 4  # the side of the covered square is 1 / _COVERED of the image's
_CONTRAST, _BRIGHTNESS = 0.3, 0.3


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
        features = self.net.features(self.net.checked(images))
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
    classes, y = np.unique(named, return_inverse=True)
    net, rng = ProtoNet.of(model), np.random.default_rng(seed)
    x = net.checked(x)
    costs, chosen = net.costs, None
    if steps and plan is not None:
        chosen = as_plan(plan, len(costs.sizes))
    elif steps:
        budgets, kernels = Budgets.of(costs, memory, compute), np.flatnonzero(costs.macs).tolist()
        last = tuple(kernels[-max(1, round(inspect * len(kernels))) :])
        queries, prototypes = augmented(x, rng, flip), net.prototypes(net.features(x), y)
        chosen = rule(net.fisher(last, queries, y, prototypes), costs, budgets)
    selected, kept = time.perf_counter(), list[np.ndarray]()
    shares = np.zeros(len(costs.sizes)) if chosen is None else costs.shares(chosen)
    if chosen is not None:
        net.adam(arguments.rate("learning_rate", learning_rate))
        suffix, versions, count = net.suffix(chosen), min(views or steps, steps), len(x)
        drawn = (augmented(x, rng, flip) for _ in range(versions))
        kept = suffix.activations(itertools.chain([x], drawn), (1 + versions) * count)
        wanted, first = tf.constant(np.concatenate([y, -1 - y])), np.arange(count)
        for step in range(steps):
            rows = np.append(first, first + count * (1 + step % versions))
            suffix.step(wanted, *(tf.constant(one[rows]) for one in kept))
    prototypes = net.prototypes(net.features(x), y).numpy()
    return Adapted(
        net,
        classes,
        prototypes,
        chosen,
        costs.memory(shares),
        costs.backward_macs(shares),
        sum(one.nbytes for one in kept),
        selected - started,
        time.perf_counter() - started,
    )


def augmented(images: np.ndarray, rng: np.random.Generator, flip: bool = False) -> np.ndarray:
    """Each image once: shifted, lighter or darker, often with a part covered; float32.

    Images (n, height, width, channels) have any range of values; with `flip` some are mirrored.
    """
    n, height, width, _ = images.shape
    down, along = height // _SHIFT, width // _SHIFT
    padded = np.pad(images, ((0, 0), (down, down), (along, along), (0, 0)), "edge")
    found = np.empty(images.shape, np.float32)
    mean = images.mean(axis=(1, 2, 3), keepdims=True)
    for k in range(n):
        top, left = rng.integers(0, 2 * down + 1), rng.integers(0, 2 * along + 1)
        moved = padded[k, top : top + height, left : left + width]
        found[k] = moved[:, ::-1] if flip and rng.random() < 0.5 else moved
    contrast, brightness = (rng.uniform(-1.0, 1.0, (n, 1, 1, 1)) for _ in range(2))
    found = mean + (1.0 + _CONTRAST * contrast) * (found - mean)
    found += _BRIGHTNESS * brightness * images.std(axis=(1, 2, 3), keepdims=True)
    for k in np.flatnonzero(rng.random(n) < 0.5).tolist():
        top, left = rng.integers(0, height), rng.integers(0, width)
        found[k, top : top + height // _COVERED, left : left + width // _COVERED] = mean[k]
    return found.astype(np.float32)


def checked(images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Images and as many labels as arrays; a ValueError if they do not fit, or are of one class."""
    x, y = arguments.samples("images", images), arguments.samples("labels", labels)
    if y.shape != (len(x),) or y.dtype.kind not in "iuSU":
        raise ValueError(
            f"The labels of {len(x)} images must be as many whole numbers or texts. Received: "
            f"{y.dtype} of shape {y.shape}: {arguments.brief(labels)}."
        )
    if len(np.unique(y)) < 2:
        raise ValueError(
            "There must be at least two classes. Received: labels "
            f"{arguments.brief(np.unique(y))}. Give images of another class too."
        )
    return x, y

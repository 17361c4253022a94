"""TinyTrain's experiments: tasks of a few images each, drawn from labelled images; meta-training.

A network learns from many tasks to recognise new classes from few images. The adaptation itself is
`elastic_tf.fewshot`. Source: Kwon et al., TinyTrain, ICML 2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf.methods.fewshot import ProtoNet, checked
from elastic_tf.train import optimizers

_WARM_UP = 0.05  # share of the steps in which the rate rises


class Episode(NamedTuple):
    """One task; labels are 0 to way - 1, images are as they were given.

    Attributes:
        support: images to learn from.
        support_labels: int64.
        query: other images of the same classes, equally many of each.
        query_labels: int64.
        classes: what the classes are called in the samples, (way,).
    """

    support: np.ndarray
    support_labels: np.ndarray
    query: np.ndarray
    query_labels: np.ndarray
    classes: np.ndarray


class Episodes:
    """Tasks with various numbers of classes and of images in each, without end.

    `episodes[i]` depends on i and the seed alone.

    The number of classes is uniform in `way`. A share of the images that are there, uniform in
    (0, 1], is to learn from; it is divided among the classes in proportion to their sizes, each
    times a factor between 1/2 and 2 drawn on a logarithmic scale.

    Args:
        samples: images (count, ...) and labels (count,), whole numbers or texts.
        way: fewest and most classes; the most is lowered to the classes that there are.
        support_limit: most support images of an episode.
        per_class_limit: most support images of a class.
        query: query images of each class.
        seed: other episodes for each.
        shots: support images of each class, where they are to be equally many.

    Raises:
        ValueError: too few classes, or a class with too few images.

    Source: Kwon et al., TinyTrain, ICML 2024, App. B.1, after Triantafillou et al., Meta-Dataset,
    ICLR 2020, App. A.2.
    """

    def __init__(
        self,
        samples: Any,
        way: tuple[int, int] = (5, 50),
        support_limit: int = 500,
        per_class_limit: int = 100,
        query: int = 10,
        seed: int = 0,
        shots: int | None = None,
    ) -> None:
        self._limits = support_limit, per_class_limit
        self._query, self._seed, self._shots = query, seed, shots
        self._images, labels = checked(samples[0], samples[1])
        self._names, self._labels = np.unique(labels, return_inverse=True)
        self._rows = [np.flatnonzero(self._labels == k) for k in range(len(self._names))]
        self._way = way[0], min(way[1], len(self._names))
        there, fewest = min(map(len, self._rows)), query + (shots or 1)
        if len(self._names) < way[0] or there < fewest:
            raise ValueError(
                f"Episodes need {way[0]} classes of {fewest} images. Received: `samples` of "
                f"{len(self._names)}, the smallest of {there} images. Lower `way`, `query` or "
                "`shots`, or leave classes out."
            )

    def __getitem__(self, index: int) -> Episode:
        rng = np.random.default_rng((self._seed, index))
        way = int(rng.integers(self._way[0], self._way[1] + 1))
        chosen = rng.choice(len(self._names), way, replace=False)
        rows = [rng.permutation(self._rows[k]) for k in chosen]
        queries = [part[: self._query] for part in rows]
        left = [part[self._query :] for part in rows]
        support = [part[:n] for part, n in zip(left, self._counts(rng, left))]
        labels = [np.repeat(np.arange(way), [len(p) for p in part]) for part in (support, queries)]
        (of_support, of_query) = (np.concatenate(part) for part in (support, queries))
        names = self._names[chosen]
        return Episode(
            self._images[of_support], labels[0], self._images[of_query], labels[1], names
        )

    def _counts(self, rng: np.random.Generator, left: list[np.ndarray]) -> list[int]:
        """Support images of each class."""
        if self._shots is not None:
            return [self._shots] * len(left)
        most, per_class = self._limits
        there = np.array([len(part) for part in left])
        share = 1.0 - rng.random()  # in (0, 1]
        total = min(most, int(np.ceil(share * np.minimum(per_class, there)).sum()))
        parts = np.exp(rng.uniform(np.log(0.5), np.log(2.0), len(left))) * there
        more = np.floor(parts / parts.sum() * max(total - len(left), 0)).astype(int)
        return np.minimum(1 + more, np.minimum(per_class, there)).tolist()


episodes = Episodes  # as a verb: `episodes(samples)`


def meta_train(
    model: tf.keras.Model | ProtoNet,
    tasks: Episodes,
    *,
    epochs: int = 100,
    steps: int = 2000,
    learning_rate: float = 5e-5,
    optimizer: tf.keras.optimizers.Optimizer | None = None,
    directory: str | Path | None = None,
    **options: Any,
) -> tf.keras.callbacks.History:
    """Train a network on one episode a step, with Keras's progress bar.

    Args:
        model: a network of features, a classifier, whose last dense layer is left out, or a
            ProtoNet. Its weights are trained in place.
        tasks: as `episodes` makes them; step i trains on `tasks[i]`.
        epochs: passes, of so many steps each.
        steps: episodes in each epoch.
        learning_rate: the highest, of a cosine to zero after a linear rise.
        optimizer: in the place of SGD with momentum 0.9 at that rate.
        directory: where a backup goes after each epoch; the same call goes on from it, bit for bit,
            as if it had not been interrupted. It is removed at the end.
        **options: of Keras's `fit`, as verbose or callbacks.

    Source: Kwon et al., TinyTrain, ICML 2024, Sec. 2.1, App. A.3.
    """
    net = ProtoNet.of(model)
    if optimizer is None:
        rate = optimizers.cosine(learning_rate, epochs * steps, warm_up=_WARM_UP)
        optimizer = optimizers.by_name("sgd", rate)
    net.compile(optimizer)
    net.model.set_plan(None)
    callbacks = [*options.pop("callbacks", ())]
    if directory is not None:
        callbacks.append(tf.keras.callbacks.BackupAndRestore(str(directory)))

    def batches() -> Iterator[tuple[Any, Any]]:
        index = int(net.model.optimizer.iterations)  # of a backup, where one was read
        while True:
            task = tasks[index]
            yield batch(*task[:4])
            index += 1

    images = net.model.inputs[0]
    kinds = (tf.TensorSpec(images.shape, images.dtype), tf.TensorSpec((None,), tf.int64))
    data = tf.data.Dataset.from_generator(batches, output_signature=kinds).prefetch(1)
    options |= {"steps_per_epoch": steps, "epochs": epochs, "callbacks": callbacks}
    return net.model.fit(data, **options)


def batch(support: Any, labels: Any, query: Any, query_labels: Any) -> tuple[Any, np.ndarray]:
    """Support images and queries as one batch."""
    x = np.concatenate([support, query]).astype(np.float32)
    return x, np.concatenate([labels, -1 - query_labels]).astype(np.int64)

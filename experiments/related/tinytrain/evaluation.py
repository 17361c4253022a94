"""How well a network adapts to a few images, over many episodes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.methods.fewshot import ProtoNet, adapt
from related.tinytrain.episodes import Episodes

_NORMAL_95 = 1.96  # standard errors from a mean to the end of its 95 % interval


class Scores(NamedTuple):
    """What was reached on each episode; arrays have shape (count,).

    Attributes:
        accuracies: shares of the queries.
        seconds: of adapting, all of it.
    """

    accuracies: np.ndarray
    seconds: np.ndarray

    @property
    def accuracy(self) -> float:
        """The mean."""
        return float(self.accuracies.mean())

    @property
    def interval(self) -> float:
        """Half-width of the 95 % interval of the mean; NaN of one episode."""
        if len(self.accuracies) < 2:
            return math.nan
        return float(_NORMAL_95 * self.accuracies.std(ddof=1) / math.sqrt(len(self.accuracies)))

    def __repr__(self) -> str:
        return (
            f"<Scores: {self.accuracy:.1%} +- {self.interval:.1%} over {len(self.seconds)} "
            f"episodes, median {np.median(self.seconds):.1f} s>"
        )


def evaluate(
    model: tf.keras.Model | ProtoNet,
    tasks: Episodes,
    count: int = 200,
    *,
    verbose: int = 1,
    **options: Any,
) -> Scores:
    """Adapt to each of `count` episodes, from the same weights, and ask its queries.

    Args:
        model: as of `adapt`. Its weights are as before afterwards.
        tasks: as `episodes` makes them.
        count: episodes.
        verbose: 1 shows a progress bar.
        **options: of `adapt`. `steps=0`: nothing is trained.

    Source: Kwon et al., TinyTrain, ICML 2024, App. A.4.
    """
    arguments.count("count", count)
    net = ProtoNet.of(model)
    weights, rows = net.model.get_weights(), []
    bar = tf.keras.utils.Progbar(count, verbose=verbose, stateful_metrics=[], unit_name="episode")
    try:
        for index in range(count):
            net.model.set_weights(weights)
            task = tasks[index]
            found = adapt(net, task.support, task.support_labels, **options)
            right = float(np.mean(found.predict(task.query) == task.query_labels))
            rows.append((right, found.seconds))
            bar.add(1, [("accuracy", right)])
    finally:
        net.model.set_weights(weights)
    return Scores(*np.array(rows, np.float64).T)

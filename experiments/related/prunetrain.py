"""PruneTrain: all tensors under a group lasso, which lets channels shrink to zero.

The paper rebuilds the network without them as it trains. In the comparisons that are shown here at
most a hundredth of the parameters went in that way, so that nothing is rebuilt: what is sparse is
counted, and a warning says where removing it would save time.

Source: Lym et al., PruneTrain: Fast Neural Network Training by Dynamic Sparse Model
Reconfiguration, SC 2019.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from elastic_tf import stack
from elastic_tf.methods.baselines import Method
from elastic_tf.model import ElasticModel
from elastic_tf.train.engine.state import Step
from related import graph

L = tf.keras.layers
_KERNELS = (L.Conv1D, L.Conv2D, L.Conv3D, L.Dense)  # (..., in, out)
RATIO = 0.2  # share of the lasso in the whole loss at the start
THRESHOLD = 1e-4  # of the largest weight of a group that is sparse
_MUCH = 0.05  # share of sparse groups


class PruneTrainModel(ElasticModel):
    """An elastic model whose training loss holds a group lasso; the loss shown does not.

    The first step sets the coefficient so that coefficient * lasso / (loss + coefficient * lasso)
    is `RATIO`, the loss that of the data alone.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        # a plain object, so that Keras does not track what is in it
        self._lasso = SimpleNamespace(coefficient=tf.Variable(math.nan, trainable=False))

    @property
    def network(self) -> tf.keras.Model:
        """The network without the lasso, on the same weights."""
        return tf.keras.Model(*stack.graph_ends(self), name=self.name)

    def forward(self, data: Any, training: bool = True) -> Step:
        """One forward pass and its loss; in training with the group lasso."""
        step = super().forward(data, training)
        if not training:
            return step
        loss, lasso, known = tf.cast(step.loss, tf.float32), penalty(self), self._lasso.coefficient
        of_data = loss - tf.add_n([tf.cast(each, tf.float32) for each in [*self.losses, 0.0]])
        first = tf.stop_gradient(RATIO / (1.0 - RATIO) * of_data / lasso)
        known.assign(tf.where(tf.math.is_nan(known), first, known))
        whole = _WithLasso(*step._replace(loss=tf.cast(loss + known * lasso, step.loss.dtype)))
        whole.shown = step.loss
        return whole

    def finish(self, step: Step) -> dict[str, tf.Tensor]:
        """Update the metrics; returns the logs of the step, the loss without the group lasso."""
        return super().finish(step._replace(loss=getattr(step, "shown", step.loss)))


class _WithLasso(Step):
    shown: Any


def sides(model: tf.keras.Model) -> Iterator[tuple[Any, list[int]]]:
    """Kernels with the axes of a group: all but the output channels, or the input channels.

    Not those of the images and of the classes, which can never go. A depthwise convolution has
    none: its channels are those of its neighbours.
    """
    kernels = [layer.kernel for layer in model.layers if type(layer) in _KERNELS]
    for k, kernel in enumerate(kernels):
        *places, inputs, outputs = range(len(kernel.shape))
        if k > 0:
            yield kernel, [*places, outputs]
        if k < len(kernels) - 1:
            yield kernel, [*places, inputs]


def penalty(model: tf.keras.Model) -> tf.Tensor:
    """Sum of the norms of all groups; every group weighs the same.

    sum over groups g of sqrt(sum(w_g^2) + 1e-8)

    The norm has no gradient at 0. As large as the square of the threshold, the floor under the root
    is that of the released code.
    """
    norms = []
    for kernel, others in sides(model):
        squares = tf.reduce_sum(tf.square(tf.cast(kernel, tf.float32)), axis=others)
        norms.append(tf.reduce_sum(tf.sqrt(squares + 1e-8)))
    return tf.add_n(norms)


def sparse_share(model: tf.keras.Model) -> float:
    """Share of the groups whose largest weight is below the threshold."""
    sparse = count = 0
    for kernel, others in sides(model):
        largest = tf.reduce_max(tf.abs(kernel), axis=others)
        sparse += int(tf.reduce_sum(tf.cast(largest < THRESHOLD, tf.int32)))
        count += int(largest.shape[0])
    return sparse / count


class SparseGroups(tf.keras.callbacks.Callback):
    """Lets the history tell the share of sparse groups, and warns at the end where it is large."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count."""
        self.share = sparse_share(self.model)
        if logs is not None:
            logs["sparse_groups"] = self.share

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Warn."""
        if self.share > _MUCH:
            warnings.warn(
                f"{self.share:.0%} of the groups are sparse. The paper removes their channels as "
                "it trains; here they stay, so that the seconds are too many.",
                stacklevel=2,
            )


def adapt(model: tf.keras.Model) -> PruneTrainModel:
    """The model under a group lasso; outputs and weights are those of `model`.

    Raises:
        TypeError: more than a graph of layers, or a training step of its own.
        ValueError: a model with fewer than two kernels.
    """
    if isinstance(model, PruneTrainModel):
        return model
    graph.check(model, "PruneTrain")
    adapted = PruneTrainModel(*stack.graph_ends(model), name=model.name)
    if not list(sides(adapted)):
        raise ValueError(
            "PruneTrain needs two convolutions or dense layers, between which channels can shrink. "
            f"Received: '{model.name}'. Take a model inside the model apart into its layers."
        )
    return adapted


METHODS = (
    Method(
        "prunetrain",
        "all tensors under a group lasso (Lym et al. 2019)",
        lambda task: [SparseGroups()],
        adapt=adapt,
        can_go_on=False,
    ),
)

"""When the ops of a traced step run, so that little is in memory at a time.

In: the graph of a step while it is traced. Out: the same graph, in which each tensor is updated as
soon as its gradient exists, and activations are computed again in the backward pass. No bit of what
the step computes is another.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from elastic_tf.train.engine.schedule import recomputation, updates

__all__ = ["recompute", "updating_early"]


def recompute(
    model: Any, loss: tf.Tensor, gradients: Sequence[Any], variables: Sequence[tf.Variable]
) -> None:
    """Let a step that is being traced keep what its model was compiled to `keep`."""
    if _is_ours(model) and model._elastic.keep < 1.0:
        recomputation.recompute(loss, gradients, variables, model._elastic.keep)


@contextlib.contextmanager
def updating_early(
    model: Any, loss: tf.Tensor, gradients: Sequence[Any], variables: Sequence[tf.Variable]
) -> Iterator[None]:
    """Let the updates that are traced inside run as early as they can."""
    is_ours = _is_ours(model)
    before = len(loss.graph.get_operations()) if is_ours else 0
    yield
    if is_ours:
        updates.update_early(loss, gradients, variables, before)


def _is_ours(model: Any) -> bool:
    """Whether the order of the ops of a model's step is ours to choose."""
    return model._elastic.keep is not None and not (tf.executing_eagerly() or model.jit_compile)

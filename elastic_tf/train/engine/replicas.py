"""Several replicas, in one process or in many workers, that act as one.

All replicas hold the same weights. What is summed over them here is the same on each; what one
worker must decide alone, the chief decides and sends it to the others. Every worker has to make the
same calls in the same order: each of them waits for all.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

Answer = TypeVar("Answer")


def count(strategy: tf.distribute.Strategy) -> int:
    """Replicas over all workers."""
    return int(strategy.num_replicas_in_sync)


def spans_workers(strategy: tf.distribute.Strategy) -> bool:
    """Whether the strategy runs in several processes."""
    return bool(strategy.extended._in_multi_worker_mode())


def from_chief(strategy: tf.distribute.Strategy, make: Callable[[], Answer]) -> Answer:
    """What `make()` returns on the chief, on every worker; it is called on the chief alone.

    It must pickle, and must not call other workers. An exception that `make` raises there is raised
    on all, so that none waits for the others.
    """
    if not spans_workers(strategy):
        return make()
    message = b""
    if strategy.extended.should_checkpoint:  # the chief, which decides and writes
        try:
            message = pickle.dumps((make(), None))
        except Exception as error:
            message = pickle.dumps((None, error))
    length = int(_total(strategy, np.array([len(message)], np.int64))[0])
    padded = np.zeros(length, np.int32)
    padded[: len(message)] = np.frombuffer(message, np.uint8)
    answer, refused = pickle.loads(_total(strategy, padded).astype(np.uint8).tobytes())
    if refused is not None:
        raise refused
    return answer


def mean_over_workers(strategy: tf.distribute.Strategy, values: np.ndarray) -> np.ndarray:
    """The mean over all workers of an array that each of them has; float64."""
    if not spans_workers(strategy):
        return values
    workers = _total(strategy, np.ones(1, np.int64))[0]
    return _total(strategy, np.asarray(values, np.float64)) / float(workers)


def sum_of_shares(
    strategy: tf.distribute.Strategy, function: Callable[[Any], list[tf.Tensor]], data: Any
) -> list[tf.Tensor]:
    """Call `function` with a share of `data` on each replica; returns the sums over all.

    Shares are equal: where the samples do not divide by the replicas, each of them gets all. Keras
    divides the loss of a replica by their number, so that either way the sum of the losses is the
    mean loss over `data`: the same samples, or as many of its own, on each worker; samples first.
    For use inside a `tf.function`; `function` returns dense tensors.
    """
    replicas = count(strategy)
    if replicas == 1:
        return function(data)

    def on_replica() -> list[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        first = int(tf.get_static_value(context.replica_id_in_sync_group))
        samples = next(part.shape[0] for part in tf.nest.flatten(data) if part is not None)
        share = slice(first, None, replicas) if samples % replicas == 0 else slice(None)
        mine = tf.nest.map_structure(lambda part: None if part is None else part[share], data)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, function(mine))

    sums = strategy.run(on_replica)
    return [strategy.experimental_local_results(part)[0] for part in sums]


def run_on_each(
    strategy: tf.distribute.Strategy, function: Callable[[list[tf.Tensor]], None], parts: Any
) -> None:
    """Call `function` on each replica with the share of each tensor that sums up to the whole."""
    replicas = count(strategy)
    if replicas == 1:
        function(parts)
    else:
        strategy.run(lambda: function([part / replicas for part in parts]))


def _total(strategy: tf.distribute.Strategy, values: np.ndarray) -> np.ndarray:
    """The sum over all workers of an array of equal shape."""

    def of_first(context: Any) -> tf.Tensor:
        first = int(context.replica_id_in_sync_group) % len(strategy.extended.worker_devices) == 0
        return tf.constant(values if first else np.zeros_like(values))

    spread = strategy.experimental_distribute_values_from_function(of_first)
    return strategy.reduce(tf.distribute.ReduceOp.SUM, spread, axis=None).numpy()

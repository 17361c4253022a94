"""Gradient accumulation: one update from the mean gradient of several micro-batches.

The sums are held for the trained tensors alone; those of the others are given back. A micro-step
ends with its gradients added to the sums; the update is a small function of its own, called from
Python after the last micro-step. So it works where `tf.cond` around an update does not: with
several replicas and with loss scaling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.stack import never_differentiated
from elastic_tf.train import optimizers


class Accumulation:
    """Sums of the gradients of one model; every replica has sums of its own."""

    def __init__(self, steps: int, strategy: tf.distribute.Strategy, optimizer: Any) -> None:
        self.steps = steps  # micro-batches in one update
        self._strategy, self._optimizer = strategy, optimizer
        self._sums: dict[int, tf.Variable] = {}  # by id of the tensor; empty unless it is trained
        self._trained: list[tf.Variable] = []
        self._without_gradient: set[int] = set()  # the loss does not depend on them
        self._update: Callable[[tf.Tensor], None] | None = None  # of what was collected
        self._collected = 0

    def hold(self, variables: Sequence[tf.Variable]) -> None:
        """Make room for the gradients of `variables`, and give back that of all others."""
        now, before = ({id(one) for one in part} for part in (variables, self._trained))
        if now == before:
            return
        self.flush()
        for key in before - now:
            # Not dropped: functions that are kept refer to it. An empty value takes no memory.
            self._sums[key].assign(tf.zeros((0,), self._sums[key].dtype))
        for key, one in ((id(one), one) for one in variables if id(one) not in before):
            zeros = tf.zeros(one.shape, one.dtype)
            if key in self._sums:
                self._sums[key].assign(zeros)
            else:
                with self._strategy.scope():
                    self._sums[key] = tf.Variable(
                        zeros,
                        shape=tf.TensorShape(None),
                        trainable=False,
                        synchronization=tf.VariableSynchronization.ON_READ,
                        aggregation=tf.VariableAggregation.SUM,
                        name="gradient_sum",
                    )
        self._trained = list(variables)

    def add(self, gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> None:
        """Add the gradients of one micro-batch; part of the traced step."""
        for gradient, variable in zip(gradients, variables):
            if gradient is None:
                self._without_gradient.add(id(variable))
            else:
                self._sums[id(variable)].assign_add(tf.convert_to_tensor(gradient))

    def function(
        self, micro_step: Callable[[Any], Any], variables: Sequence[tf.Variable]
    ) -> Callable[[Any], Any]:
        """A train function that calls `micro_step` and updates `variables` at every last one."""
        update = self._make_update(variables)

        def train_function(iterator: Any) -> Any:
            logs = micro_step(iterator)
            self._update = update
            self._collected += 1
            if self._collected >= self.steps:
                self.flush()
            return logs

        return train_function

    def flush(self) -> None:
        """Update with the mean over what was collected, be it less than `steps` micro-batches."""
        if self._collected and self._update is not None:
            self._update(tf.constant(self._collected, tf.float32))
        self._collected = 0

    def forget(self) -> None:
        """Leave out what was collected."""
        if self._collected:
            for total in map(self._sum, self._trained):
                total.assign(tf.zeros_like(self._strategy.experimental_local_results(total)[0]))
        self._collected = 0

    def collected(self) -> tuple[int, list[int], list[np.ndarray]]:
        """Micro-batches since the last update, trained tensors without gradient, and the sums."""
        without = [k for k, v in enumerate(self._trained) if id(v) in self._without_gradient]
        return self._collected, without, [self._sum(v).numpy() for v in self._trained]

    def go_on(
        self,
        variables: Sequence[tf.Variable],
        collected: int,
        without: Sequence[int],
        sums: Sequence[np.ndarray],
    ) -> None:
        """Go on from what `collected` returned when `variables` were trained."""
        self.hold(variables)
        for variable, value in zip(variables, sums):
            self._sum(variable).assign(value)
        self._without_gradient.update(id(variables[k]) for k in without)
        self._collected, self._update = collected, self._make_update(variables)

    def _sum(self, variable: tf.Variable) -> tf.Variable:
        return self._sums[id(variable)]

    def _make_update(self, variables: Sequence[tf.Variable]) -> Callable[[tf.Tensor], None]:
        def on_replica(count: tf.Tensor) -> None:
            with never_differentiated():
                means = [self._mean(variable, count) for variable in variables]
                optimizers.apply_selected(self._optimizer, means, variables)
                for variable in variables:
                    self._sum(variable).assign(tf.zeros(variable.shape, variable.dtype))

        return tf.function(
            lambda count: self._strategy.run(on_replica, args=(count,)), autograph=False
        )

    def _mean(self, variable: tf.Variable, count: tf.Tensor) -> tf.Tensor | None:
        if id(variable) in self._without_gradient:
            return None
        total = tf.ensure_shape(self._sum(variable).read_value(), variable.shape)
        return total / tf.cast(count, total.dtype)

"""Passes over a probe that leave the model as it was: gradients, and the update made from them."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, optimizers
from elastic_tf.engine import replicas
from elastic_tf.engine.batches import tensors
from elastic_tf.engine.checks import batch_explained
from elastic_tf.engine.snapshot import host_generators_kept, kept
from elastic_tf.stack import never_differentiated

if TYPE_CHECKING:
    from elastic_tf.model import ElasticModel

# Traces are kept for so many shapes of batches; they hold memory.
_MOST_TRACES = 8

Batches = Sequence[tuple[float, Any]]


class Samples:
    """The probe as tensors, cut into batches.

    Args:
        x: inputs; an array or a structure of arrays, samples first.
        y: targets.
        sample_weight: weights of the samples.
        name: of the argument that holds them all, for messages.
    """

    def __init__(self, x: Any, y: Any, sample_weight: Any = None, *, name: str = "") -> None:
        others = {"y": y, "sample_weight": sample_weight}
        given = {"x": x, **{part: value for part, value in others.items() if value is not None}}
        found = tensors([(name or part, value) for part, value in given.items()], as_fit=True)
        by_part = dict(zip(given, found))
        self.data = tuple(by_part.get(part) for part in ("x", "y", "sample_weight"))
        self.count = len(tf.nest.flatten(self.data[0])[0])

    def halves(self) -> tuple[Samples, Samples]:
        """Every second sample, and the others."""
        return Samples(*self._cut(slice(0, None, 2))), Samples(*self._cut(slice(1, None, 2)))

    def batches(self, size: int | None) -> Batches:
        """(share of the samples, (x, y, sample_weight)) of each batch; one batch if None."""
        size = self.count if size is None else size
        cuts = [slice(k, min(k + size, self.count)) for k in range(0, self.count, size)]
        return [((cut.stop - cut.start) / self.count, self._cut(cut)) for cut in cuts]

    def updates(self, count: int, size: int | None) -> list[Batches]:
        """The batches of `count` updates that are made one after the other, as even as can be.

        Args:
            count: of updates; each has samples of its own.
            size: samples in a batch, at most.
        """
        count = arguments.count("steps", count)
        if self.count < count:
            raise ValueError(
                "Each of `steps` updates needs a sample of its own. Received: "
                f"steps={count} for {self.count} samples. Use a larger probe, or fewer steps."
            )
        most = self.count // count
        batches = self.batches(most if size is None else min(size, most))
        cuts = np.linspace(0, len(batches), count + 1).round().astype(int)
        groups = [batches[start:stop] for start, stop in zip(cuts[:-1], cuts[1:])]
        shares = [sum(share for share, _ in group) for group in groups]
        return [
            [(share / whole, data) for share, data in group] for whole, group in zip(shares, groups)
        ]

    def _cut(self, cut: slice) -> Any:
        return tf.nest.map_structure(lambda part: None if part is None else part[cut], self.data)


class Evaluator:
    """The traced passes of one compiled model.

    Every call puts back all that it changed: weights, slots, step count, moving statistics, random
    generators, metrics. Dropout and its like have counters of their own here, which the train
    function does not see.

    Attributes:
        most_samples: in one pass, where memory was found to hold no more; None while not known.
    """

    def __init__(self, model: ElasticModel) -> None:
        # The evaluator is stored on the model: a strong reference back would be a cycle.
        self._model = weakref.ref(model)
        self._compiled = _compiled(model)
        self.most_samples: int | None = None
        with model.distribute_strategy.scope():
            optimizers.build(model.optimizer, model.trainable_variables)
        self.forget()

    @classmethod
    def of(cls, model: ElasticModel) -> Evaluator:
        """The model's evaluator; a new one if it was compiled or other layers are trainable."""
        evaluator = model.__dict__.get("_evaluator")
        if evaluator is None or not _same(evaluator._compiled, _compiled(model)):
            evaluator = cls(model)
            # Past Keras' __setattr__, which would track it and save it with the model.
            object.__setattr__(model, "_evaluator", evaluator)
        else:
            evaluator._limit_traces()
        return evaluator

    def gradients(self, batches: Batches, *, part: str = "alone") -> list[tf.Tensor]:
        """Gradients of the mean loss over the batches.

        Args:
            batches: from `Samples.batches`.
            part: "first" and "second" are called in turn, with the same batches: the second call
                sees the augmentation and dropout of the first. "alone" stands for itself.

        Raises:
            ValueError: the loss is not finite.
        """
        function = self._passes[part]
        graphs = set()
        with host_generators_kept(self.model):  # the next part is to draw the same seeds
            for _, data in batches:
                with batch_explained(data):
                    graphs.add(function.get_concrete_function(data).graph)
        total: list[tf.Tensor] = []
        with kept(self.model, graphs):
            for share, data in batches:
                with batch_explained(data):
                    loss, gradients = function(data)
                self._check_loss(float(loss))
                if share < 1.0:
                    gradients = [share * gradient for gradient in gradients]
                total = [a + b for a, b in zip(total, gradients)] if total else gradients
        return total

    def decrease(
        self,
        update: list[tf.Tensor],
        gradients: list[tf.Tensor] | None,
        batches: Batches = (),
        *,
        then: Sequence[Batches] = (),
    ) -> np.ndarray:
        """-sum(gradients * dw) for each tensor, dw the optimizer's updates together.

        Args:
            update: gradients that the optimizer is given first.
            gradients: gradients to multiply with; None: those after the updates, on `batches`, as
                the second part of the passes that the updates come from.
            batches: from `Samples.batches`.
            then: batches of further updates, each made from its gradients at the weights that the
                updates before it led to.
        """
        graph = self._update.get_concrete_function(update).graph
        with kept(self.model, [graph]):
            old = [variable.read_value() for variable in self._variables()]
            self._update(update)
            part = "first" if gradients is None else "alone"
            for group in then:
                self._update(self.gradients(group, part=part))
            if gradients is None:
                gradients = self.gradients(batches, part="second")
            return self.in_forward_order(self._multiply(gradients, old).numpy())

    def in_forward_order(self, values: Sequence[float] | np.ndarray) -> np.ndarray:
        """(N,) the values of the tensors that the loss depends on, zero for the others."""
        ordered = np.zeros(len(self.model.tensors))
        ordered[self._connected] = values
        return ordered

    @property
    def model(self) -> ElasticModel:
        """The model that this evaluator is stored on."""
        model = self._model()
        if model is None:
            raise ReferenceError("The model of this evaluator is gone.")
        return model

    def forget(self) -> None:
        """Drops all traces."""
        self._connected: list[int] = []
        # Dropout ops of two traces have equal seeds; called in turn, they count alike.
        parts = ("alone", "first", "second")
        self._passes = {part: _traced(self._trace_gradients) for part in parts}
        self._update = _traced(self._trace_update)
        self._multiply = _traced(self._trace_multiply)

    def _limit_traces(self) -> None:
        counts = (run.experimental_get_tracing_count() for run in self._passes.values())
        if max(counts) > _MOST_TRACES:
            self.forget()

    def _variables(self) -> list[tf.Variable]:
        tensors = self.model.tensors
        return [tensors[k] for k in self._connected]

    def _check_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            # A pass was left half done: the two traces no longer count alike.
            self.forget()
            raise ValueError(
                f"The loss on the probe must be finite. Received: loss={loss}. Lower the learning "
                "rate, or look at the probe's samples."
            )

    def _trace_gradients(self, data: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        if tf.compat.v1.get_default_graph().seed is None:
            # Without a seed two traces would draw different dropout.
            tf.random.set_seed(0)
        with never_differentiated():
            loss, *gradients = replicas.sum_of_shares(
                self.model.distribute_strategy, self._loss_and_gradients, data
            )
        return loss, gradients

    def _loss_and_gradients(self, data: Any) -> list[tf.Tensor]:
        step, gradients = self.model.gradients(data, self.model.tensors)
        self._connected = [k for k, gradient in enumerate(gradients) if gradient is not None]
        return [step.loss, *(tf.convert_to_tensor(gradients[k]) for k in self._connected)]

    def _trace_update(self, gradients: list[tf.Tensor]) -> None:
        with never_differentiated():
            replicas.run_on_each(
                self.model.distribute_strategy,
                lambda parts: optimizers.apply_selected(
                    self.model.optimizer, parts, self._variables()
                ),
                gradients,
            )

    def _trace_multiply(self, gradients: list[tf.Tensor], old: list[tf.Tensor]) -> tf.Tensor:
        products = [
            tf.reduce_sum(gradient * tf.cast(variable.read_value() - before, gradient.dtype))
            for gradient, variable, before in zip(gradients, self._variables(), old)
        ]
        return -tf.stack([tf.cast(product, tf.float64) for product in products])


def _traced(function: Any) -> Any:
    traced = tf.function(function)
    # A trace for each shape of batch is meant here; TensorFlow 2.15 would warn of retracing.
    traced._omit_frequent_tracing_warning = True
    return traced


def _compiled(model: ElasticModel) -> tuple:
    """What the traces were made from; kept alive, so that identity is telling."""
    return (model.optimizer, model.compiled_loss, *model.tensors)


def _same(one: tuple, two: tuple) -> bool:
    return len(one) == len(two) and all(a is b for a, b in zip(one, two))

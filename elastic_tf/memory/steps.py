"""The memory of a training step as TensorFlow runs it, and which plans keep a limit of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.files import write_json
from elastic_tf.memory import executor
from elastic_tf.memory.ops import tensor_bytes
from elastic_tf.memory.traced import TracedStep
from elastic_tf.model import ElasticModel
from elastic_tf.plan import EXACT, FROZEN, Plan, as_plan
from elastic_tf.stack import variables_of
from elastic_tf.train import optimizers
from elastic_tf.train.batches import batch_of
from elastic_tf.train.engine.mixin import ElasticMixin
from elastic_tf.train.engine.tracing import input_spec, traced_pass

_GROWTH = 8  # of a batch size of which more is tried


@dataclass(frozen=True)
class StepMemory:
    """What a training step takes, and when."""

    batch_size: int  #: samples in a step
    #: Bytes of the process at the fullest moment, in pieces as the allocator hands them out.
    peak: int
    #: All that is allocated; first what is there before the step and after it.
    tensors: tuple[executor.Tensor, ...]
    ops: tuple[str, ...]  #: in the order in which they start

    @cached_property
    def live(self) -> np.ndarray:
        """Bytes that are asked for and in use at each op; int64."""
        return executor.live_bytes(self.tensors)

    @property
    def fullest(self) -> int:
        """Number of the op at which most is in use."""
        return int(self.live.argmax())

    def save(self, path: str | Path) -> None:
        """Write all of it as JSON to a file, which appears whole or not at all."""
        tensors = [one._asdict() for one in self.tensors]
        whole = {"batch_size": self.batch_size, "peak": self.peak, "ops": self.ops}
        write_json(arguments.path("path", path), {**whole, "tensors": tensors})


def step(model: Any, data: Any, plan: Plan | np.ndarray | None = None) -> StepMemory:
    """The memory of a training step, op by op, as TensorFlow's executor runs it.

    The step is traced and does not run. Its ops start in the executor's order on two threads, each
    for a guess of its time.

    Counted are the batch, all weights and slots, for TensorFlow makes the slots of frozen tensors
    too, and all that ops give, copies of weights that are updated while an op reads them among it.
    Not counted are buffers inside an op, the library, and the tensors of other programs.

    Args:
        model: elastic and compiled; or any Keras model, which is taken as it is compiled, or with
            Keras's SGD and the mean squared error.
        data: one batch, (x, y) or (x, y, sample_weight), or a `tf.data.Dataset` of such batches. Or
            the samples in a batch: targets are class numbers then where the loss is a sparse one,
            else as large as the outputs.
        plan: how each tensor is trained, or a bool mask, shape (N,), forward order. None: the
            model's own plan.

    Raises:
        TypeError: not a Keras model.
        ValueError: `plan` or `data` do not fit, or the size of a tensor is known only while the
            step runs.
    """
    if isinstance(data, (int, np.integer)):
        arguments.count("data", data)
        model = _elastic(model)
        return _of_batch(model, _sized(_blank(model), int(data)), plan)
    return _of_batch(_elastic(model), batch_of(data), plan)


def largest_batch(model: Any, limit: int | str, plan: Plan | np.ndarray | None = None) -> int:
    """The largest batch size whose step fits into memory; 0 if none does.

    Peaks grow almost in proportion to the batch, so that tracing a few steps is enough.

    Args:
        model: as of `step`.
        limit: bytes, or a text like "256 MiB".
        plan: as of `step`.
    """
    most, model = arguments.memory("limit", limit), _elastic(model)
    batch = _blank(model)

    def peak(size: int) -> int:
        return _of_batch(model, _sized(batch, size), plan).peak

    before, needed = 1, peak(1)
    if needed > most:
        return 0
    fits, fails, guess = 1, arguments.MOST, _GROWTH
    while fails - fits > 1:
        guess = min(max(guess, fits + 1), fails - 1, _GROWTH * fits)
        last, needed = needed, peak(guess)
        if needed <= most:
            fits = guess
        else:
            fails = guess
        slope = max(1, (needed - last) // (guess - before))
        before, guess = guess, guess + (most - needed) // slope
    return fits


class Limit:
    """So much memory for a training step: `select_tensors(..., memory=et.memory.Limit(...))`.

    The full step is traced once. Of what a plan trains follows which of its ops run, and when
    TensorFlow's executor allocates what; see `step`.

    Args:
        limit: bytes, or a text like "256 MiB".
        model: compiled elastic model.
        data: one batch, as of `step`.
        beside: bytes that are held beside the step under a plan: samples, cached activations.

    Attributes:
        bytes: the limit.
        held: bytes that are there all the time: batch, weights, slots.
    """

    def __init__(
        self,
        limit: int | str,
        model: Any,
        data: Any,
        *,
        beside: Callable[[Plan], int] = lambda plan: 0,
    ) -> None:
        self.bytes = arguments.memory("limit", limit)
        self._model, self._batch, self._beside = model, batch_of(data), beside
        _build(model, self._batch)
        self._full = TracedStep.of(model, self._batch, Plan.full(len(model.tensors)))
        self.held = sum(size for *_, size in persistent(model, self._batch))
        self._peaks: dict[Plan, int] = {}

    def peak(self, plan: Plan) -> int:
        """Bytes at the fullest moment of a step, what is there all the time included."""
        if plan not in self._peaks:
            is_part = self._full.is_separable and np.isin(plan.modes, (FROZEN, EXACT)).all()
            if is_part:
                step = self._full.restricted(plan.mask)
            else:
                step = TracedStep.of(self._model, self._batch, plan)
            whole = self.held + step.run().taken + self._beside(plan)
            self._peaks[plan] = round(whole)
        return self._peaks[plan]

    @cached_property
    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """What a step keeps for its gradients, as cost items: an estimate, in one sum.

        Members, bool (S, N): the tensors that need each; and bytes, float64 (S,).
        """
        count, sizes = len(self._model.tensors), Counter[int]()
        for (name, port), bits in self._full.kept().items():
            sizes[bits] += self._full.works[name].sizes[port]
        for k, variable in enumerate(self._model.tensors):  # its gradient
            sizes[1 << k] += tensor_bytes(variable) or 0
        members = np.array([[bits >> k & 1 for k in range(count)] for bits in sizes], bool)
        return members, np.array([*sizes.values()], float)


def _of_batch(model: ElasticMixin, batch: Any, plan: Plan | np.ndarray | None) -> StepMemory:
    """`step` of an elastic model, and of a batch or the specification of one."""
    _build(model, batch)
    plan = model.plan if plan is None else as_plan(plan, len(model.tensors))
    traced = TracedStep.of(model, batch, plan)
    found = traced.run()
    last = max(len(found.order) - 1, 0)
    lasting = [executor.Tensor(*one, 0, last) for one in persistent(model, batch)]
    owners, roots = traced.owners, traced.roots

    def kind(name: str) -> str:
        if name.endswith(executor.COPY):
            return "copy"
        if name not in owners:
            return "activation"
        return "gradient" if name in roots else "derivative"

    tensors = [one._replace(kind=kind(one.name)) for one in found.buffers]
    peak = sum(one.bytes for one in lasting) + round(found.taken)
    size = int(tf.nest.flatten(batch)[0].shape[0])
    return StepMemory(size, peak, (*lasting, *tensors), tuple(found.order))


def _elastic(model: Any) -> ElasticMixin:
    """An elastic model with the weights of `model`, compiled as that is."""
    if isinstance(model, ElasticMixin):
        return arguments.elastic(model, compiled=True)
    same, optimizer = ElasticModel.from_model(model), getattr(model, "optimizer", None)
    if optimizer is None:
        same.compile("sgd", "mse")
    else:
        inner = optimizers.unwrapped(optimizer)
        same.compile(type(inner).from_config(inner.get_config()), model.loss)
    return same


def _blank(model: ElasticMixin) -> Any:
    """The specification of a batch (x, y) of any size."""
    x = input_spec(model)
    y = traced_pass(model, x, training=False).structured_outputs
    outputs, losses = tf.nest.flatten(y), tf.nest.flatten(model.loss)
    losses = losses * len(outputs) if len(losses) == 1 else losses
    named = (str(getattr(one, "name", getattr(one, "__name__", one))) for one in losses)
    targets = [
        tf.TensorSpec(one.shape[:-1], tf.int64)
        if "sparse" in name
        else tf.TensorSpec(one.shape, one.dtype)
        for one, name in zip(outputs, named)
    ]
    return x, tf.nest.pack_sequence_as(y, targets)


def _sized(batch: Any, size: int) -> Any:
    """The specification of a batch with so many samples."""
    return tf.nest.map_structure(
        lambda one: tf.TensorSpec([size, *one.shape[1:]], one.dtype), batch
    )


def _build(model: Any, batch: Any) -> None:
    """Make the weights and slots that the first step would make."""
    if not arguments.elastic(model, compiled=True).built:
        model(batch[0])
    model._build_optimizer()


def persistent(model: Any, batch: Any) -> Iterator[tuple[str, str, int]]:
    """Name, kind and bytes of what is there all the time: batch, weights and slots."""
    for k, part in enumerate(tf.nest.flatten(batch)):
        yield f"batch/{k}", "label" if k else "activation", tensor_bytes(part) or 0
    variables = {"weight": variables_of(model), "slots": optimizers.state(model.optimizer)}
    for kind, some in variables.items():
        for one in some:
            yield one.name.partition(":")[0], kind, tensor_bytes(one) or 0

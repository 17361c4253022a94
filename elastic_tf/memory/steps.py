"""The memory of a training step as TensorFlow runs it: any model, any plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, optimizers
from elastic_tf.costs.activations import tensor_bytes
from elastic_tf.inputs.batches import batch_of
from elastic_tf.memory import executor
from elastic_tf.memory.executor import Run
from elastic_tf.memory.lifetimes import CREATE, EXTERNAL
from elastic_tf.memory.memory_plan import MemoryPlan, PlannedTensor
from elastic_tf.memory.planner import offsets
from elastic_tf.memory.traced import TracedStep
from elastic_tf.plan import Plan, as_plan

_LEAST = 4096  # bytes of a tensor with a place of its own; smaller ones are planned together


def step(model: Any, data: Any, plan: Plan | np.ndarray | None = None) -> MemoryPlan:
    """The memory of a training step, op by op, as TensorFlow's executor runs it.

    The step is traced and does not run. Its ops start in the executor's order on two threads, each
    for a guess of its time. `lower_bound` is what TensorFlow asks its allocator for at the fullest
    moment; the allocator itself hands out pieces that are up to twice as large, a few percent in
    the sum. `peak` is what planned offsets would need.

    Counted are the batch, all weights and slots, for TensorFlow makes the slots of frozen tensors
    too, and all that ops give, copies of weights that are updated while an op reads them among it.
    Not counted are buffers inside an op, the library, and the tensors of other programs.

    Args:
        model: compiled elastic model of any kind.
        data: one batch, (x, y) or (x, y, sample_weight), or a `tf.data.Dataset` of such batches.
        plan: how each tensor is trained, or a bool mask, shape (N,), forward order. None: the
            model's own plan.

    Returns:
        The plan; its `steps` are ops. Tensors below 4 KiB have one place together.

    Raises:
        ValueError: `plan` or `data` do not fit, or the size of a tensor is known only while the
            step runs.
    """
    batch = batch_of(data)
    build(model, batch)
    plan = model.plan if plan is None else as_plan(plan, len(model.tensors))
    traced = TracedStep.of(model, batch, plan)
    found = executor.run(traced)
    lasting = [*persistent(model, batch)]
    at = np.cumsum([0, *(one.bytes for one in lasting)]).tolist()
    last = max(len(found.order) - 1, 0)
    tensors = [
        PlannedTensor(one.name, one.kind, one.mode, one.bytes, offset, (0, last), one.name)
        for one, offset in zip(lasting, at)
    ]
    tensors += _placed(traced, found, at[-1], last)
    size = int(tf.nest.flatten(batch)[0].shape[0])
    return MemoryPlan(size, tuple(tensors), dict(enumerate(found.order)))


def build(model: Any, batch: Any) -> None:
    """Make the weights and slots that the first step would make."""
    if not arguments.elastic(model, compiled=True).built:
        model(batch[0])
    with model.distribute_strategy.scope():
        optimizers.build(model.optimizer, model.trainable_variables)


def persistent(model: Any, batch: Any) -> Iterable[PlannedTensor]:
    """What is there from the first op to the last: batch, weights and slots; without places."""
    for k, part in enumerate(tf.nest.flatten(batch)):
        yield _lasting(f"batch/{k}", "label" if k else "activation", EXTERNAL, tensor_bytes(part))
    for number, (kind, variables) in enumerate(
        [("weight", model.variables), ("slots", optimizers.state(model.optimizer))]
    ):
        for k, variable in enumerate(variables):
            name = f"{number}.{k}/{variable.name.partition(':')[0]}"
            yield _lasting(name, kind, CREATE, tensor_bytes(variable))


def _lasting(name: str, kind: str, mode: str, size: int | None) -> PlannedTensor:
    return PlannedTensor(name, kind, mode, size or 0, 0, (0,), name)


def _placed(traced: TracedStep, found: Run, floor: int, last: int) -> list[PlannedTensor]:
    """What the ops allocate, at offsets from `floor` on."""
    large = [one for one in found.buffers if one.bytes >= _LEAST]
    small = [one for one in found.buffers if one.bytes < _LEAST]
    lives = [(one.first, one.last) for one in large]
    places = offsets([one.bytes for one in large], lives)
    owners = traced.owners()
    tensors = []
    for number, (one, place) in enumerate(zip(large, places)):
        name = f"{one.name}:{number}"
        kind = "activation"
        if one.name.endswith("/copy"):
            kind = "weight"
        elif one.name in owners:
            kind = "gradient" if one.name in traced.roots else "derivative"
        orders = (one.first, one.last)
        tensors.append(PlannedTensor(name, kind, CREATE, one.bytes, floor + place, orders, name))
    if small:
        size = executor.most(small, len(found.order))
        end = floor + max((place + one.bytes for one, place in zip(large, places)), default=0)
        name = f"tensors below {_LEAST} bytes"
        tensors.append(PlannedTensor(name, "activation", CREATE, size, end, (0, last), name))
    return tensors

"""Where each tensor of a training step stands in memory that is planned before it runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf import arguments, optimizers
from elastic_tf.engine.forward_order import forward_order
from elastic_tf.engine.mixin import ElasticMixin
from elastic_tf.memory.executor import live_bytes
from elastic_tf.plan import Plan, as_plan
from elastic_tf.stack import graph_ends
from related.nntrainer import network
from related.nntrainer.lifetimes import EXTEND, SWAPPED, Step, Tensor, merge, stays
from related.nntrainer.planner import offsets

_ALWAYS = ("weight", "slots")  # kinds of tensors that are there from first to last
_SWAPPED: dict[str, tuple[str, ...]] = {
    "activations": ("activation", "kept"),
    "all": ("activation", "kept", "derivative", "gradient", "label", *_ALWAYS),
}


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of a training step.

    Attributes:
        name: unique in the plan; with "#1" and so on where it is read back from the swap file.
        kind: "activation", "derivative", "weight", "gradient", "slots", "kept" or "label".
        mode: how it comes to its memory: "P" with the batch, "C" it is created, "E" it is that of
            the same weight, "MV" it changes another tensor in place, "RV" it is another view of it,
            "S" it is read back from the swap file.
        bytes: size.
        offset: where it begins in the planned memory, in bytes.
        orders: execution orders at which it is used, swapped in or out, ascending.
        buffer: name of the tensor whose memory it has, its own if none other.
    """

    name: str
    kind: str
    mode: str
    bytes: int
    offset: int
    orders: tuple[int, ...]
    buffer: str


@dataclass(frozen=True)
class MemoryPlan:
    """Where each tensor of a training step stands, and when.

    Attributes:
        batch_size: samples in a step.
        tensors: all tensors of the step, in the order in which they are first used.
        steps: execution order -> layer and what it does.
    """

    batch_size: int
    tensors: tuple[PlannedTensor, ...]
    steps: dict[int, str]

    @cached_property
    def buffers(self) -> tuple[PlannedTensor, ...]:
        """Memory of the tensors: the first of those that share it, with the orders of all."""
        orders: dict[str, set[int]] = {}
        for tensor in self.tensors:
            orders.setdefault(tensor.buffer, set()).update(tensor.orders)
        return tuple(
            replace(tensor, orders=tuple(sorted(orders[tensor.name])))
            for tensor in self.tensors
            if tensor.name in orders
        )

    @cached_property
    def live(self) -> np.ndarray:
        """Bytes that are in use at each execution order; int64."""
        lives = [(buffer.orders[0], buffer.orders[-1]) for buffer in self.buffers]
        return live_bytes([buffer.bytes for buffer in self.buffers], lives)

    @property
    def peak(self) -> int:
        """Bytes of memory that the step needs with these offsets."""
        return max(buffer.offset + buffer.bytes for buffer in self.buffers)

    @property
    def lower_bound(self) -> int:
        """Bytes below which no offsets can go: the most that is in use at one execution order."""
        return int(self.live.max())

    @property
    def fullest(self) -> int:
        """Execution order at which most is in use."""
        return int(self.live.argmax())

    @property
    def unplanned(self) -> int:
        """Bytes of all tensors if none shared its memory with another one."""
        return sum(one.bytes for one in self.tensors if one.mode not in (EXTEND, SWAPPED))


def plan(
    model: tf.keras.Model,
    batch_size: int,
    plan: Plan | np.ndarray | None = None,
    clip: bool = False,
    *,
    swap: str | None = None,
    lookahead: int = 1,
) -> MemoryPlan:
    """Plan the memory of a training step, layer by layer.

    This is what a runtime needs that places each tensor at a planned offset. TensorFlow does not;
    see `elastic_tf.memory.step`. Counted are the batch, labels as large as the outputs, all
    weights, optimizer slots of the trained ones, and all that the gradients take of the forward
    pass. Not counted is what a layer needs while it runs alone: temporary numbers inside it.

    Args:
        model: functional or sequential model, built; elastic or not. If it is compiled, the slots
            of its optimizer count.
        batch_size: samples in a step.
        plan: how each tensor is trained, or a bool mask, shape (N,), forward order. None: an
            elastic model's own plan, all trainable tensors of another model.
        clip: whether gradients are clipped by their global norm: all are kept until the last one.
        swap: what is in a file while nobody uses it: None; "activations", as in
            `elastic_tf.memory.swapped`; or "all", weights and slots too, as in the paper.
        lookahead: execution orders before a use at which a tensor is read back. With 0 it is there
            when it is used; else it takes another order to write it, too.

    Returns:
        The plan: peak, lower bound, offset and lifetime of each tensor.

    Raises:
        TypeError: not such a model.
        ValueError: `plan` or `batch_size` do not fit, or the size of a tensor is known only while
            the model runs, as in loops.

    Source: Moon et al., NNTrainer, ICSE 2024, Sec. 4.1 to 4.3.
    """
    if not (isinstance(model, tf.keras.Model) and graph_ends(model) is not None):
        raise TypeError(
            "`model` must be a functional or sequential Keras model that is built. Received: "
            f"{arguments.brief(model)} of type {type(model).__name__}. The layers inside other "
            "models are not known: make one with tf.keras.Model(inputs, outputs)."
        )
    arguments.count("batch_size", batch_size)
    arguments.flag("clip", clip)
    arguments.count("lookahead", lookahead, least=0)
    if swap is not None:
        arguments.choice("swap", swap, _SWAPPED)
    elastic = isinstance(model, ElasticMixin)
    tensors = model.tensors if elastic else forward_order(model)
    chosen = model.plan if elastic and plan is None else as_plan(plan, len(tensors))
    found = network.read(model, batch_size, tensors, chosen)
    step = Step(found, clip=clip, slots=_slots(getattr(model, "optimizer", None)))
    return placed(step, batch_size, _SWAPPED[swap] if swap else (), lookahead)


def placed(
    step: Step, batch_size: int, swapped: Collection[str] = (), lookahead: int = 1
) -> MemoryPlan:
    """The plan of a step: memory is shared where it can be, then given offsets.

    Args:
        step: whose tensors get their buffers here.
        batch_size: samples in it.
        swapped: kinds of tensors that are in a file while nobody uses them.
        lookahead: as of `plan`.
    """
    for tensor in step.tensors.values():
        if tensor.kind in _ALWAYS and tensor.kind not in swapped:
            tensor.orders.update((0, max(step.names)))
    merge([*step.tensors.values()])
    if swapped:
        step.tensors = _apart(step, swapped, lookahead)
    orders: dict[str, set[int]] = {}
    for tensor in step.tensors.values():
        orders.setdefault(tensor.buffer, set()).update(tensor.orders)
    sizes = [step.tensors[name].bytes for name in orders]
    lives = [(min(used), max(used)) for used in orders.values()]
    offset = dict(zip(orders, offsets(sizes, lives)))
    tensors = (
        PlannedTensor(
            one.name,
            one.kind,
            one.mode,
            one.bytes,
            offset[one.buffer],
            tuple(sorted(one.orders)),
            one.buffer,
        )
        for one in step.tensors.values()
    )
    steps = dict(sorted(step.names.items()))
    # the one that gives a buffer its name before those that share it
    by_use = sorted(tensors, key=lambda one: (one.orders[0], one.buffer != one.name))
    return MemoryPlan(batch_size, tuple(by_use), steps)


def _apart(step: Step, swapped: Collection[str], lookahead: int) -> dict[str, Tensor]:
    """The tensors, with another buffer for each time that their memory is there."""
    shared: dict[str, list[Tensor]] = {}
    for one in sorted(step.tensors.values(), key=lambda one: one.buffer != one.name):
        shared.setdefault(one.buffer, []).append(one)
    found: dict[str, Tensor] = {}
    for name, sharing in shared.items():
        if step.tensors[name].kind not in swapped:
            found.update((one.name, one) for one in sharing)
            continue
        used = {order for one in sharing for order in one.orders}
        is_early = step.tensors[name].kind in _ALWAYS  # it is in the file when the step begins
        for number, (first, last) in enumerate(stays(used, lookahead, max(step.names), is_early)):
            there, buffer = range(first, last + 1), ""
            for one in sharing:
                if not (orders := one.orders.intersection(there)):
                    continue
                again = number > 0 and min(orders) > min(one.orders)
                new = replace(
                    one,
                    name=f"{one.name}#{number}" if number else one.name,
                    mode=SWAPPED if again else one.mode,
                    orders=set(orders),
                )
                new.buffer = buffer = buffer or new.name
                found[new.name] = new
            found[buffer].orders.update((first, last))
    return found


def _slots(optimizer: Any) -> float:
    """Numbers that an optimizer keeps for each weight."""
    if optimizer is None:
        return 0.0
    inner = optimizers.unwrapped(optimizer)
    copy = type(inner).from_config(inner.get_config())
    layer = tf.keras.layers.Dense(8, use_bias=False)
    layer.build((None, 2))
    optimizers.build(copy, layer.trainable_variables)
    sizes = (variable.shape.num_elements() for variable in optimizers.state(copy))
    return sum(size for size in sizes if size > 1) / 16

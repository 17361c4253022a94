"""Where each tensor of a training step stands in memory that is planned before it runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from elastic_tf.memory.executor import live_bytes
from elastic_tf.plan import Plan, as_plan
from elastic_tf.train import optimizers
from elastic_tf.train.engine.forward_order import forward_order
from elastic_tf.train.engine.mixin import ElasticMixin
from related.nntrainer import network
from related.nntrainer.lifetimes import EXTEND, SWAPPED, Step, Tensor, merge, stays

_ALWAYS = ("weight", "slots")  # kinds of tensors that are there from first to last
_SWAPPED: dict[str | None, tuple[str, ...]] = {
    None: (),
    "activations": ("activation", "kept"),
    "all": ("activation", "kept", "derivative", "gradient", "label", *_ALWAYS),
}


@dataclass(frozen=True)
class MemoryPlan:
    """Where each tensor of a training step stands, and when.

    Attributes:
        tensors: all tensors of the step, in the order in which they are first used.
        steps: execution order -> layer and what it does.
    """

    tensors: tuple[Tensor, ...]
    steps: dict[int, str]

    @cached_property
    def buffers(self) -> tuple[Tensor, ...]:
        """Memory of the tensors: the first of those that share it, with the orders of all."""
        orders = _orders(self.tensors)
        return tuple(
            replace(tensor, orders=orders[tensor.name])
            for tensor in self.tensors
            if tensor.name in orders
        )

    @cached_property
    def live(self) -> np.ndarray:
        """Bytes that are in use at each execution order; int64."""
        lives = [(min(buffer.orders), max(buffer.orders)) for buffer in self.buffers]
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
    def unplanned(self) -> int:
        """Bytes of all tensors if none shared its memory with another one."""
        return sum(one.bytes for one in self.tensors if one.mode not in (EXTEND, SWAPPED))


def plan(
    model: tf.keras.Model,
    batch_size: int,
    plan: Plan | np.ndarray | None = None,
    *,
    swap: str | None = None,
    lookahead: int = 1,
) -> MemoryPlan:
    """Plan the memory of a training step, layer by layer.

    Counted are the batch, labels as large as the outputs, all weights, optimizer slots of the
    trained ones, and all that the gradients take of the forward pass. Not counted is what a layer
    needs while it runs alone: temporary numbers inside it.

    Args:
        model: functional or sequential, built. If it is compiled, its optimizer's slots count.
        batch_size: samples in a step.
        plan: how each tensor is trained, or a bool mask, shape (N,), forward order. None: an
            elastic model's own plan, all trainable tensors of another model.
        swap: what is in a file while nobody uses it: None; "activations", as in
            `elastic_tf.memory.swapped`; or "all", weights and slots too, as in the paper.
        lookahead: execution orders before a use at which a tensor is read back. With 0 it is there
            when it is used; else it takes another order to write it, too.

    Raises:
        ValueError: the size of a tensor is known only while the model runs, as in loops.

    Source: Moon et al., NNTrainer, ICSE 2024, Sec. 4.1 to 4.3.
    """
    elastic = isinstance(model, ElasticMixin)
    tensors = model.tensors if elastic else forward_order(model)
    chosen = model.plan if elastic and plan is None else as_plan(plan, len(tensors))
    found = network.read(model, batch_size, tensors, chosen)
    step = Step(found, slots=_slots(getattr(model, "optimizer", None)))
    return placed(step, _SWAPPED[swap], lookahead)


def placed(step: Step, swapped: Collection[str] = (), lookahead: int = 1) -> MemoryPlan:
    """The plan of a step: memory is shared where it can be, then given offsets.

    Args:
        step: whose tensors get their buffers here.
        swapped: kinds of tensors that are in a file while nobody uses them.
        lookahead: as of `plan`.
    """
    for tensor in step.tensors.values():
        if tensor.kind in _ALWAYS and tensor.kind not in swapped:
            tensor.orders.update((0, max(step.names)))
    merge([*step.tensors.values()])
    tensors = _apart(step, swapped, lookahead)
    orders = _orders(tensors.values())
    lives = [(min(used), max(used)) for used in orders.values()]
    offset = dict(zip(orders, offsets([tensors[name].bytes for name in orders], lives)))
    for one in tensors.values():
        one.offset = offset[one.buffer]
    # the one that gives a buffer its name before those that share it
    by_use = sorted(tensors.values(), key=lambda one: (min(one.orders), one.buffer != one.name))
    return MemoryPlan(tuple(by_use), dict(sorted(step.names.items())))


def offsets(sizes: Sequence[int], lives: Sequence[tuple[int, int]]) -> list[int]:
    """Offsets of buffers in one piece of memory, at which none that live together overlap.

    One after the other takes the lowest gap that is large enough between the buffers that live at
    the same time: in the order in which they begin to live, those that live longest first; and
    once more, the largest first. The lower peak counts.

    Args:
        sizes: bytes of each buffer.
        lives: first and last execution order of each.

    Source: Moon et al., NNTrainer, ICSE 2024, Algorithm 2. The printed one takes the place of a
    dead tensor without asking for its size, or whether another one took it before. Its order alone
    gave peaks up to a fifth above the lower bound.
    """
    every = range(len(sizes))
    by_start = sorted(every, key=lambda k: (lives[k][0], -lives[k][1]))
    by_size = sorted(every, key=lambda k: (-sizes[k], lives[k][0]))
    tried = [_in_gaps(order, sizes, lives) for order in (by_start, by_size)]
    return min(tried, key=lambda found: max(map(int.__add__, found, sizes), default=0))


def _in_gaps(
    order: Sequence[int], sizes: Sequence[int], lives: Sequence[tuple[int, int]]
) -> list[int]:
    found = [0] * len(sizes)
    placed: list[int] = []
    for k in order:
        first, last = lives[k]
        beside = [n for n in placed if lives[n][0] <= last and first <= lives[n][1]]
        end = 0  # of what stands below
        for n in sorted(beside, key=lambda n: found[n]):
            if found[n] - end >= sizes[k]:
                break
            end = max(end, found[n] + sizes[n])
        found[k] = end
        placed.append(k)
    return found


def _orders(tensors: Collection[Tensor]) -> dict[str, set[int]]:
    """Execution orders at which each buffer is used."""
    orders: dict[str, set[int]] = {}
    for tensor in tensors:
        orders.setdefault(tensor.buffer, set()).update(tensor.orders)
    return orders


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

"""NNTrainer: the memory of a training step of a chain of layers, planned before it runs.

Layer i of N runs forward at order i, the loss at N. Backward, with j = N - 1 - i, the gradients of
its weights come at N + 3j, the derivative of its input at N + 3j + 1, the update at N + 3j + 2. A
frozen layer computes its derivative in the place of the gradients. An activation function works in
place, and Flatten gives a view. Labels are as large as the outputs. Of VGG16 and shorter chains;
what TensorFlow takes for any model says `elastic_tf.memory.step`.

Source: Moon et al., NNTrainer, ICSE 2024, Sec. 4.1 to 4.3, with two readings. Its index of the
backward pass runs forward, against its Figure 5; here it is reversed. Its Figure 6 leaves the loss
out, which its Table 4 counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

L = tf.keras.layers
_BYTES = 4  # of a float32


@dataclass
class Tensor:
    """What a step asks for; `orders` are those at which it is used.

    It may stand where tensor `over` stands: changing it, or as a view where `is_view`. Then
    `buffer` is the name of the one whose memory it has. `is_outside`: memory of the batch, which is
    never changed. `lasts`: it is there before the step and after it.
    """

    name: str
    bytes: int
    orders: set[int] = field(default_factory=set)
    over: str = ""
    is_view: bool = False
    is_outside: bool = False
    lasts: bool = False
    buffer: str = ""
    offset: int = 0


class _Layer(NamedTuple):
    """A layer of the chain: its output, the weights with whether they are trained, what it does."""

    name: str
    bytes: int  # of its output
    weights: list[tuple[str, int, bool]]
    does: str  # "kernel", "in place", "view" or "pool"


class Step:
    """A training step of a chain of layers.

    Args:
        model: built: convolutions and dense layers, with activation functions in them or behind
            them, max pooling, Flatten.
        batch_size: samples in a step.
        mask: True where a weight is trained, bool, in the order of the layers; None: all.
        has_loss: whether a loss reads output and label, which the paper's figures leave out.

    Attributes:
        tensors: by name; activations have that of their layer.
        names: what happens, by execution order.

    Raises:
        ValueError: another layer.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        batch_size: int,
        mask: Sequence[bool] | None = None,
        *,
        has_loss: bool = True,
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}
        layers = _chain(model, batch_size, mask)
        size, count = batch_size * math.prod(model.input_shape[1:]) * _BYTES, len(layers)
        self._use("input", size, 0).is_outside = True
        given = ["input", *(layer.name for layer in layers)]
        sizes = [size, *(layer.bytes for layer in layers)]
        trained = [any(on for *_, on in layer.weights) for layer in layers]
        for i, layer in enumerate(layers):
            self.names[i] = f"{layer.name}: forward"
            self._use(given[i], sizes[i], i)
            made = self._use(layer.name, layer.bytes, i)
            if layer.does in ("in place", "view"):
                made.over, made.is_view = given[i], layer.does == "view"
            for name, weight, _ in layer.weights:
                self._use(name, weight, i).lasts = True
        end = given[-1]
        self._use(f"{end}/derivative", sizes[-1], count)
        if has_loss:
            self.names[count] = "loss"
            self._use(end, 0, count)
            self._use(f"{end}/label", sizes[-1], 0, count).is_outside = True
        for i in range(count - 1, -1, -1):
            if any(trained[: i + 1]):
                passes_on = any(trained[:i])
                self._backward(
                    layers[i], given[i], sizes[i], count + 3 * (count - 1 - i), passes_on
                )

    def _use(self, name: str, size: int, *orders: int) -> Tensor:
        tensor = self.tensors.setdefault(name, Tensor(name, size))
        tensor.orders.update(orders)
        return tensor

    def _backward(self, layer: _Layer, x: str, size: int, order: int, passes_on: bool) -> None:
        gradients = [(name, weight) for name, weight, on in layer.weights if on]
        if gradients:
            self.names[order] = f"{layer.name}: gradients"
            self.names[order + 2] = f"{layer.name}: update"
            self._use(x, 0, order)
            self._use(f"{layer.name}/derivative", 0, order)
        for name, weight in gradients:
            self._use(f"{name}/gradient", weight, order, order + 2)
            self._use(name, 0, order + 2)
        if not passes_on:
            return
        order += bool(gradients) or not layer.weights
        self.names[order] = f"{layer.name}: derivative"
        self._use(f"{layer.name}/derivative", 0, order)
        made = self._use(f"{x}/derivative", size, order)
        for name, *_ in layer.weights:
            self._use(name, 0, order)
        if layer.does in ("in place", "pool"):
            self._use(layer.name, 0, order)
        if layer.does == "pool":
            self._use(x, 0, order)
        if layer.does in ("in place", "view"):
            made.over, made.is_view = f"{layer.name}/derivative", layer.does == "view"

    def placed(self) -> int:
        """Give each tensor its buffer and offset; returns the bytes that this takes.

        A tensor may change the memory of another one when nothing reads that any more.

        Source: Algorithms 1 (lines 21 to 31) and 2. The second, as printed, takes the place of a
        dead tensor without asking for its size, or whether another one took it before.
        """
        last: dict[str, int] = {}  # order at which a buffer is used
        end, known = max(self.names), self.tensors
        for one in sorted(known.values(), key=lambda one: (min(one.orders), bool(one.over))):
            one.buffer = one.name
            if one.over:
                under = known[known[one.over].buffer]
                is_free = min(one.orders) >= last[under.name] and not under.is_outside
                one.buffer = under.name if one.is_view or is_free else one.name
            last[one.buffer] = max(*one.orders, last.get(one.buffer, 0))
        buffers = [one for one in known.values() if one.buffer == one.name]
        lives = [(0, end) if b.lasts else (min(b.orders), last[b.name]) for b in buffers]
        found = dict(zip([b.name for b in buffers], offsets([b.bytes for b in buffers], lives)))
        for one in known.values():
            one.offset = found[one.buffer]
        return max(one.offset + one.bytes for one in buffers)

    def swapped(self, lookahead: int = 0) -> int:
        """Bytes that no offsets can go below where all that is not in use waits in a file.

        What is read `lookahead` orders before its use is written one order after it. Call `placed`
        before.
        """
        used: dict[str, set[int]] = {}
        for one in self.tensors.values():
            used.setdefault(one.buffer, set()).update(one.orders)
        end, live = max(self.names), np.zeros(max(self.names) + 1, np.int64)
        for name, orders in used.items():
            behind = min(lookahead, 1)
            there = {k for o in orders for k in range(o - lookahead, o + behind + 1)}
            if not self.tensors[name].lasts:  # what the step makes is there no sooner
                there = {k for k in there if k >= min(orders)}
            live[[k for k in there if 0 <= k <= end]] += self.tensors[name].bytes
        return int(live.max())


def offsets(sizes: Sequence[int], lives: Sequence[tuple[int, int]]) -> list[int]:
    """Offsets of buffers in one piece of memory, at which none that live together overlap.

    One after the other takes the lowest gap that is large enough between the buffers that live at
    the same time: in the order in which they begin to live, those that live longest first; and
    once more, the largest first. The lower peak counts.

    Args:
        sizes: bytes of each buffer.
        lives: first and last execution order of each.
    """
    every = range(len(sizes))
    by_start = sorted(every, key=lambda k: (lives[k][0], -lives[k][1]))
    by_size = sorted(every, key=lambda k: (-sizes[k], lives[k][0]))
    tried = [_in_gaps(order, sizes, lives) for order in (by_start, by_size)]
    return min(tried, key=lambda found: max(map(int.__add__, found, sizes), default=0))


def _in_gaps(
    order: Iterable[int], sizes: Sequence[int], lives: Sequence[tuple[int, int]]
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


def _chain(model: tf.keras.Model, batch_size: int, mask: Any) -> list[_Layer]:
    """The layers of a model, an activation function apart from the layer that ends with it."""
    found: list[_Layer] = []
    on = iter([True] * len(model.weights) if mask is None else mask)
    for layer in model.layers:
        if isinstance(layer, L.InputLayer):
            continue
        size = batch_size * math.prod(layer.output.shape[1:]) * _BYTES
        if isinstance(layer, (L.Conv2D, L.Dense)):
            names = [weight.name.partition(":")[0].rpartition("/")[2] for weight in layer.weights]
            weights = [
                (f"{layer.name}/{name}", math.prod(weight.shape) * _BYTES, bool(next(on)))
                for name, weight in zip(names, layer.weights)
            ]
            is_linear = layer.activation is tf.keras.activations.linear
            found.append(_Layer(layer.name + "/linear" * (not is_linear), size, weights, "kernel"))
            if not is_linear:
                found.append(_Layer(layer.name, size, [], "in place"))
        elif isinstance(layer, (L.Activation, L.ReLU)):
            found.append(_Layer(layer.name, size, [], "in place"))
        elif isinstance(layer, (L.Flatten, L.MaxPooling2D)):
            found.append(
                _Layer(layer.name, size, [], "view" if isinstance(layer, L.Flatten) else "pool")
            )
        else:
            raise ValueError(
                "A chain may have convolutions, dense layers, activations, max pooling, Flatten. "
                f"Received: '{layer.name}' of class {type(layer).__name__}."
            )
    return found

"""When each tensor of a training step is used, and which tensors share their memory.

A step is a row of execution orders. With N layers, layer i runs forward at i. Backward, with
j = N - 1 - i, the gradients of its weights come at N + 3j, the derivative of its input at
N + 3j + 1, the update at N + 3j + 2. A layer with weights of which none is trained computes the
derivative alone, in the place of the gradients. The loss is computed at N.

Source: Moon et al., NNTrainer, ICSE 2024, Sec. 4.1, Algorithm 1, with two readings. Its index of
the backward pass runs forward, against its Figure 5; here it is reversed. Its Figure 6 leaves the
loss out, which its Table 4 counts: here the loss reads the output and the label while it writes the
derivative.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from related.nntrainer.layers import MODIFY, Layer, View
from related.nntrainer.network import Network

EXTERNAL, CREATE, EXTEND, SWAPPED = "P", "C", "E", "S"


@dataclass
class Tensor:
    """A tensor that a step asks for.

    Attributes:
        name: unique; with "#1" and so on where it is read back from the swap file.
        kind: "activation", "derivative", "weight", "gradient", "slots", "kept" or "label".
        bytes: size.
        mode: "P" memory of the batch, "C" memory of its own, "E" the memory of the same weight;
            "MV" and "RV" where another tensor stands, with or without changing it; "S" what comes
            back from the swap file.
        orders: execution orders at which it is used, swapped in or out.
        views: where it can stand.
        buffer: name of the tensor whose memory it has, its own if none other.
        offset: where it begins in the planned memory, in bytes.
    """

    name: str
    kind: str
    bytes: int
    mode: str = CREATE
    orders: set[int] = field(default_factory=set)
    views: tuple[View, ...] = ()
    buffer: str = ""
    offset: int = 0


class _Orders:
    """Execution orders of one layer."""

    def __init__(self, i: int, count: int, layer: Layer) -> None:
        self.forward = i
        self.gradient = count + 3 * (count - 1 - i)
        is_frozen = bool(layer.weights) and not layer.gradients
        self.derivative = self.gradient + (not is_frozen)
        self.apply = self.gradient + 2


class Step:
    """A training step.

    Args:
        network: its layers.
        slots: numbers that the optimizer keeps for each weight.

    Attributes:
        tensors: what it asks for, by name.
        names: what happens, by execution order.
    """

    def __init__(self, network: Network, *, slots: float) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}
        self._sizes = network.activations
        self._updates: dict[str, tuple[Layer, _Orders]] = {}  # weight -> its use nearest the input
        count = len(network.layers)
        orders = [_Orders(i, count, layer) for i, layer in enumerate(network.layers)]
        for name in network.inputs:
            self._use(name, "activation", self._sizes[name], 0).mode = EXTERNAL
        for layer, at in zip(network.layers, orders):
            self._forward(layer, at)
        if network.passing:
            self.names[count] = "loss"
        for name in network.outputs if network.passing else ():
            self._use(name, "activation", self._sizes[name], count)
            self._use(f"{name}/label", "label", self._sizes[name], 0, count).mode = EXTERNAL
            if name in network.passing:
                self._derivative(name, count)
        for layer, at in reversed([*zip(network.layers, orders)]):
            self._backward(layer, at)
        self._update(slots)

    def _use(self, name: str, kind: str, size: int, *orders: int) -> Tensor:
        tensor = self.tensors.setdefault(name, Tensor(name, kind, size))
        tensor.orders.update(orders)
        return tensor

    def _activation(self, name: str, order: int) -> Tensor:
        return self._use(name, "activation", self._sizes[name], order)

    def _derivative(self, name: str, *orders: int) -> Tensor:
        return self._use(f"{name}/derivative", "derivative", self._sizes[name], *orders)

    def _forward(self, layer: Layer, at: _Orders) -> None:
        self.names[at.forward] = f"{layer.name}: forward"
        for name in layer.inputs:
            self._activation(name, at.forward)
        for name in layer.outputs:
            tensor = self._activation(name, at.forward)
            tensor.views = layer.views.get(name, ())
        for name, size in layer.weights.items():
            if name in self.tensors:
                again = self._use(f"{layer.name}/{name}", "weight", size, at.forward)
                again.mode, again.views = EXTEND, (View(EXTEND, name),)
            else:
                self._use(name, "weight", size, at.forward)

    def _backward(self, layer: Layer, at: _Orders) -> None:
        """Gradients and derivatives, if the loss has a derivative of an output."""
        ends = [name for name in layer.outputs if f"{name}/derivative" in self.tensors]
        if not ends:
            return
        parts = []
        if layer.gradients:
            parts.append((at.gradient, "gradients", layer.for_gradients))
        if layer.derivatives:
            parts.append((at.derivative, "derivative", layer.for_derivatives))
        for order, what, taken in parts:
            self.names[order] = f"{layer.name}: {what}"
            for name in ends:
                self._derivative(name, order)
            for name in taken:
                self._activation(name, order)
            for name in layer.weights if what == "derivative" else ():
                self.tensors[name].orders.add(order)
            for number, (size, takers) in enumerate(layer.kept):
                if what in takers:
                    self._use(f"{layer.name}/kept{number}", "kept", size, at.forward, order)
        for name, size in layer.gradients.items():
            self._use(f"{name}/gradient", "gradient", size, at.gradient)
            self._updates[name] = (layer, at)
        for name in layer.derivatives:
            tensor = self._derivative(name, at.derivative)
            views = layer.derivative_views.get(name, ())
            tensor.views = tuple(View(mode, f"{of}/derivative") for mode, of in views)

    def _update(self, slots: float) -> None:
        """Updates, each when the gradient is complete."""
        for name, (layer, at) in self._updates.items():
            self.names[at.apply] = f"{layer.name}: update"
            self._use(f"{name}/gradient", "gradient", 0, at.apply)
            self._use(name, "weight", 0, at.apply)
            if slots:
                self._use(f"{name}/slots", "slots", round(slots * layer.weights[name]), at.apply)


def merge(tensors: Sequence[Tensor]) -> None:
    """Let tensors stand where others stand; sets their buffers, and what cannot is created.

    A tensor that changes another one's memory may do so when nothing reads that any more. Memory of
    the batch is never changed. Views are given before changes: what has to be read later is known
    then.

    Source: Moon et al., NNTrainer, ICSE 2024, Algorithm 1, lines 21 to 31.
    """
    known = {tensor.name: tensor for tensor in tensors}
    last: dict[str, int] = {}  # order at which a buffer is used
    for tensor in sorted(tensors, key=_when):
        tensor.buffer, end = tensor.name, max(tensor.orders)
        for mode, of in tensor.views:
            if of in known:
                buffer = known[of].buffer
                is_read_later = min(tensor.orders) < last[buffer]
                if mode != MODIFY or not (is_read_later or known[buffer].mode == EXTERNAL):
                    tensor.mode, tensor.buffer = mode, buffer
                    break
        last[tensor.buffer] = max(end, last.get(tensor.buffer, 0))


def stays(
    orders: Collection[int], lookahead: int, end: int, is_early: bool
) -> list[tuple[int, int]]:
    """First and last execution orders of the times at which a swapped tensor is in memory.

    Args:
        orders: at which it is used.
        lookahead: orders before a use at which it is read back; if not 0, writing takes one.
        end: the last order of the step.
        is_early: whether it is in the file when the step begins.

    Source: Moon et al., NNTrainer, ICSE 2024, Sec. 4.3.
    """
    found: list[tuple[int, int]] = []
    for order in sorted(orders):
        first = max(order - lookahead, 0) if found or is_early else order
        last = min(order + min(lookahead, 1), end)
        if found and first <= found[-1][1] + 1:
            first = found.pop()[0]
        found.append((first, last))
    return found


def _when(tensor: Tensor) -> tuple[int, bool]:
    return min(tensor.orders), any(view.mode == MODIFY for view in tensor.views)

"""What training kernels costs a runtime that keeps nothing in vain, and which fit two budgets.

It is counted for one image. The runtime keeps the inputs of trained kernels and a sign for each
number that a rectifier or a sum of two branches gives, and computes in the memory that inference
takes. It is not TensorFlow, which `elastic_tf.memory.step` follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from elastic_tf import arguments
from elastic_tf.plan import CHANNELS, EXACT, FROZEN, NAMES, Plan, layers_of
from elastic_tf.train.engine import modes
from elastic_tf.train.engine.tracing import input_spec, traced_pass

_WEIGHT = 4  # bytes of a float32
# Bits for each number of a result that the way back takes; of a sum those of TinyTL's counter.
_BITS = {
    **dict.fromkeys(("AddV2", "Relu", "Relu6", "LeakyRelu"), 1),
    **dict.fromkeys(("Elu", "Selu", "Sigmoid", "Softplus", "Tanh"), 32),
}


@dataclass(frozen=True)
class KernelCosts:
    """What the tensors of a network cost; arrays have shape (N,) and run in forward order.

    Source: Kwon et al., TinyTrain, ICML 2024, App. A.4; the counter is that of Cai et al., TinyTL,
    NeurIPS 2020, where a depthwise kernel's outputs hardly count towards the peak.
    """

    sizes: np.ndarray  #: numbers in each tensor; int64
    #: Multiply-adds of a forward pass that a kernel makes, 0 for other tensors; int64.
    macs: np.ndarray
    inputs: np.ndarray  #: bytes of what a kernel is multiplied with; int64
    #: Bytes that activations and sums keep, of those behind a kernel and before the next one;
    #: int64.
    kept: np.ndarray
    peak: int  #: bytes of inference, the most that inputs and outputs of a kernel take together
    #: Names of the modes that each kernel can have -> how many output channels are trained then;
    #: kernels by their index.
    channels: Mapping[int, Mapping[str, int]]

    @property
    def full_macs(self) -> int:
        """Multiply-adds of a whole backward pass, as the paper counts: twice those of inference."""
        return 2 * int(self.macs.sum())

    def shares(self, plan: Plan) -> np.ndarray:
        """The part of each tensor's numbers that a plan trains; float64 (N,)."""
        found = plan.mask.astype(np.float64)
        for k, chosen in plan.channels.items():
            found[k] = len(chosen) / self.channels[k]["exact"]
        return found

    def saved(self, shares: np.ndarray) -> int:
        """Bytes that the backward pass of one image takes of the forward pass."""
        trained = shares > 0.0
        return int(self.inputs[trained].sum() + self.kept[self._first(trained) :].sum())

    def memory(self, shares: np.ndarray) -> int:
        """Bytes: the larger of inference and `saved`; trained weights, gradients, Adam's slots."""
        trained = round(float(shares @ self.sizes))
        return max(self.peak, self.saved(shares)) + 4 * _WEIGHT * trained

    def backward_macs(self, shares: np.ndarray) -> int:
        """Multiply-adds: gradients of what is trained, and of all inputs behind the first of it."""
        behind = self.macs[self._first(shares > 0.0) + 1 :].sum()
        return round(float(shares @ self.macs)) + int(behind)

    @staticmethod
    def _first(trained: np.ndarray) -> int:
        return int(np.argmax(trained)) if trained.any() else len(trained)


def kernel_costs(model: tf.keras.Model) -> KernelCosts:
    """Count what the kernels of a built elastic model cost; other layers cost nothing here.

    Raises:
        ValueError: no layer has a kernel, or the size of an image is not known.
    """
    tensors = arguments.elastic(model).tensors
    index = {id(tensor): k for k, tensor in enumerate(tensors)}
    macs, inputs, kept = (np.zeros(len(tensors), np.int64) for _ in range(3))
    one = tf.nest.map_structure(
        lambda spec: tf.TensorSpec((1, *spec.shape[1:]), spec.dtype), input_spec(model)
    )
    with modes.recorded(model) as uses:
        graph = traced_pass(model, one, training=False).graph
    if not uses or any(None in part.shape for use in uses for part in (use.x, use.y)):
        raise ValueError(
            "The model must have convolutions or dense layers, and images of known size. Received: "
            f"'{model.name}' with inputs {one} and {len(uses)} uses of kernels. Build it for one "
            "size."
        )
    of_op = {use.y.op.name: use for use in uses}
    last, peak = -1, 0
    for op in graph.get_operations():
        use = of_op.get(op.name)
        if use is None:
            bits = _BITS.get(op.type, 0)
            if last >= 0 and bits and len({str(one.shape) for one in op.inputs}) == 1:
                kept[last] += bits * math.prod(op.outputs[0].shape) // 8
            continue
        last = index.get(id(use.kernel), last)
        x = use.x.op.inputs[0] if use.x.op.type in ("Pad", "PadV2") else use.x  # zeros take nothing
        taken, given = (math.prod(one.shape) * one.dtype.size for one in (x, use.y))
        is_depthwise = isinstance(use.layer, tf.keras.layers.DepthwiseConv2D)
        groups = use.x.shape[-1] if is_depthwise else getattr(use.layer, "groups", 1)
        peak = max(peak, taken + given // groups)
        if id(use.kernel) in index:
            macs[last] += math.prod(use.kernel.shape) * math.prod(use.y.shape[1:-1])
            inputs[last] += taken
    sizes = np.array([math.prod(tensor.shape) for tensor in tensors])
    return KernelCosts(sizes, macs, inputs, kept, peak, _channels(model, macs))


def _channels(model: tf.keras.Model, macs: np.ndarray) -> dict[int, dict[str, int]]:
    known = [modes.MODES[code] for code in sorted(CHANNELS) if modes.MODES[code].keeps]
    able = {mode.name: modes.kernels(model, mode.name) for mode in known}
    layers, found = layers_of(model), dict[int, dict[str, int]]()
    for k in np.flatnonzero(macs).tolist():
        is_depthwise = type(layers[k]) is tf.keras.layers.DepthwiseConv2D
        found[k] = {NAMES[EXACT]: int(model.tensors[k].shape[2 if is_depthwise else -1])}
        for mode in known:
            if able[mode.name][k]:
                found[k][mode.name] = mode.channels(layers[k])[0]
    return found


class Budgets(NamedTuple):
    """Most bytes of `KernelCosts.memory`, and most `KernelCosts.backward_macs`; infinite: any."""

    memory: float
    macs: float

    @classmethod
    def of(cls, costs: KernelCosts, memory: int | str | None, compute: float) -> Budgets:
        """Bytes, and a share of a backward pass; a ValueError where inference takes more memory."""
        arguments.number("compute", compute, low=0.0, high=1.0, above=True)
        most = float("inf") if memory is None else arguments.memory("memory", memory)
        if most < costs.peak:
            raise ValueError(
                f"`memory` must be what inference takes, {costs.peak} bytes, or more. Received: "
                f"memory={memory!r}. Give more, or take smaller images or a smaller network."
            )
        return cls(most, compute * costs.full_macs)


def paper_rule(worth: Mapping[int, np.ndarray], costs: KernelCosts, budgets: Budgets) -> Plan:
    """As many kernels as fit, the best first, then as many of their best channels.

    Kernels are ranked by the sum of their channels' worth, divided by their numbers and their
    multiply-adds. Taken is the longest beginning of the rank that fits with the fewest channels
    each; then each kernel, in that order, gets the most channels with which all still fits. Kernels
    that do not fit alone are passed over.

    Args:
        worth: of each channel, by the index of the kernel; kernels that are left out stay frozen.
        costs: of the network's kernels.
        budgets: most memory and most multiply-adds.

    Raises:
        ValueError: no kernel fits.

    Source: Kwon et al., TinyTrain, ICML 2024, Sec. 2.2, Eq. (3), whose maxima change no rank. The
    number of channels, which the paper leaves open, is the largest that fits.
    """

    def fits(shares: np.ndarray) -> bool:
        is_small = costs.memory(shares) <= budgets.memory
        return is_small and costs.backward_macs(shares) <= budgets.macs

    def trained(shares: np.ndarray, k: int, count: int) -> np.ndarray:
        share = count / costs.channels[k][NAMES[EXACT]]
        return np.where(np.arange(len(shares)) == k, share, shares)

    shares = np.zeros(len(costs.sizes))
    modes = {k: sorted(costs.channels[k].items(), key=lambda one: one[1]) for k in worth}
    alone = [k for k in worth if fits(trained(shares, k, modes[k][0][1]))]
    if not alone:
        raise ValueError(
            "A kernel must fit into both budgets. Received: "
            f"{budgets.memory:g} bytes and {budgets.macs:.0f} multiply-adds, which none of "
            f"{len(worth)} kernels keeps to. Raise `memory` or `compute`."
        )
    chosen: list[int] = []
    for k in sorted(alone, key=lambda k: -worth[k].sum() / (costs.sizes[k] * costs.macs[k])):
        more = trained(shares, k, modes[k][0][1])
        if not fits(more):
            break
        shares, chosen = more, [*chosen, k]
    plan = Plan(np.full(len(shares), FROZEN))
    for k in chosen:
        name, count = next(one for one in modes[k][::-1] if fits(trained(shares, k, one[1])))
        shares = trained(shares, k, count)
        plan = with_best(plan, k, name, worth[k], costs)
    return plan


def with_best(plan: Plan, k: int, name: str, worth: np.ndarray, costs: KernelCosts) -> Plan:
    """The plan with a kernel in that mode: as many of its best channels as the mode trains."""
    if name == NAMES[EXACT]:
        return plan.with_mode(name, np.arange(len(plan)) == k)
    return plan.with_channels(name, {k: np.argsort(-worth)[: costs.channels[k][name]].tolist()})

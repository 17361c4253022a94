"""Random timing tables to try the selector on: chains and branched networks.

A network is a list of layers; the backward op that carries the gradient past a layer is needed by
every tensor upstream of it, which is where the dependency sets of a real profile come from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from elastic_tf.timing.cost_items import CostItem, as_arrays

# Networks asked for with no more tensors than this have no batch normalisation.
FEW = 12


@dataclasses.dataclass(frozen=True)
class Table:
    """Times as a `TimingProfile` has them, and nothing else."""

    t_dw: np.ndarray
    t_dy: np.ndarray
    t_forward: float
    t_full: float
    items: tuple[CostItem, ...]

    @classmethod
    def from_sets(
        cls, sets: list[tuple[tuple[int, ...], float]], count: int, t_forward: float
    ) -> Table:
        """The chain is the projection of the sets: a shared set goes to its largest index."""
        t_dw, t_dy = np.zeros(count), np.zeros(count)
        for tensors, time in sets:
            (t_dw if len(tensors) == 1 else t_dy)[tensors[-1]] += time
        groups = tuple(CostItem.of(tensors, time) for tensors, time in sets)
        t_full = t_forward + sum(group.time for group in groups)
        return cls(t_dw, t_dy, float(t_forward), float(t_full), groups)

    @property
    def count(self) -> int:
        return len(self.t_dw)

    @cached_property
    def conditions(self) -> tuple[np.ndarray, np.ndarray]:
        members, times = as_arrays(self.items, len(self.t_dw))
        members.flags.writeable = False
        return members, times

    def step_time(self, mask: np.ndarray) -> float:
        members, times = self.conditions
        return self.t_forward + float(times[members[:, mask].any(axis=1)].sum())


class Layer(NamedTuple):
    """`inputs` are indices of earlier layers; `fused`: one op makes all its gradients (BN)."""

    inputs: tuple[int, ...]
    tensors: int
    fused: bool = False


def chain_table(t_dw: np.ndarray, t_dy: np.ndarray, t_forward: float) -> Table:
    sets = [((k,), float(t)) for k, t in enumerate(t_dw)]
    sets += [(tuple(range(k + 1)), float(t)) for k, t in enumerate(t_dy)]
    return Table.from_sets(sets, len(t_dw), t_forward)


def network_table(layers: list[Layer], rng: np.random.Generator, draw: str = "lognormal") -> Table:
    """Sets by reverse reachability; times drawn by `draw`."""
    upstream: list[frozenset[int]] = []  # tensors that the output of a layer depends on
    costs: dict[frozenset[int], float] = {}
    count = 0

    def add(tensors: frozenset[int]) -> None:
        if tensors:
            costs[tensors] = costs.get(tensors, 0.0) + float(times(rng, draw, 1)[0])

    for layer in layers:
        own = frozenset(range(count, count + layer.tensors))
        count += layer.tensors
        before = frozenset().union(*(upstream[i] for i in layer.inputs))
        for tensor in sorted(own):
            add(frozenset({tensor}))
        add(before | own if layer.fused else before)
        upstream.append(before | own)
    sets = [(tuple(sorted(tensors)), time) for tensors, time in costs.items()]
    total = max(sum(time for _, time in sets), 1.0)
    return Table.from_sets(sets, count, rng.uniform(0.2, 0.7) * total)


def times(rng: np.random.Generator, draw: str, count: int) -> np.ndarray:
    """Positive times: "lognormal", "pareto" (heavy tail), "ties" (few values), "zeros" (half)."""
    if draw == "pareto":
        return 10.0 * (1.0 + rng.pareto(1.1, count))
    if draw == "ties":
        return rng.integers(1, 4, count) * 50.0
    if draw == "zeros":
        return rng.integers(0, 2, count) * rng.lognormal(5.0, 1.0, count)
    return rng.lognormal(5.0, 1.2, count)


def worths(rng: np.random.Generator, draw: str, table: Table) -> np.ndarray:
    """Importance: "uniform", "signed", "pareto", "ties", "cost" (as the time alone, noisy)."""
    count = len(table.t_dw)
    if draw == "signed":
        return rng.normal(0.3, 1.0, count)
    if draw == "pareto":
        return rng.pareto(1.1, count)
    if draw == "ties":
        return rng.integers(-1, 3, count).astype(float)
    if draw == "cost":
        return (table.t_dw + 1.0) * rng.uniform(0.9, 1.1, count)
    return rng.random(count)


def convolution(layers: list[Layer], source: int, *, bare: bool) -> int:
    """Convolution, batch normalisation unless `bare`, activation; the index of the last."""
    layers.append(Layer((source,) if source >= 0 else (), 1))
    if not bare:
        layers.append(Layer((len(layers) - 1,), 2, fused=True))
    layers.append(Layer((len(layers) - 1,), 0))
    return len(layers) - 1


def blocks(count: int, grown: Callable[[list[Layer], int], int]) -> list[Layer]:
    """About `count` tensors: blocks that `grown` puts behind an end, until there are enough."""
    layers: list[Layer] = []
    end = convolution(layers, -1, bare=count <= FEW)
    while sum(layer.tensors for layer in layers) < count - 2:
        end = grown(layers, end)
    layers.append(Layer((end,), 2))
    return layers


def residual(count: int, rng: np.random.Generator) -> list[Layer]:
    """Bottleneck blocks, some with a projection before or after the path."""
    bare = count <= FEW

    def grown(layers: list[Layer], end: int) -> int:
        projects, first = rng.random() < 0.4, rng.random() < 0.5
        shortcut = convolution(layers, end, bare=bare) if projects and first else end
        path = end
        for _ in range(int(rng.integers(2, 4))):
            path = convolution(layers, path, bare=bare)
        if projects and not first:
            shortcut = convolution(layers, end, bare=bare)
        layers.append(Layer((path, shortcut), 0))
        return len(layers) - 1

    return blocks(count, grown)


def towers(count: int, rng: np.random.Generator) -> list[Layer]:
    """About `count` tensors: two towers side by side, joined before the head."""
    layers: list[Layer] = []
    ends = [-1, -1]
    while sum(layer.tensors for layer in layers) < count - 2:
        side = int(rng.integers(0, 2))
        ends[side] = convolution(layers, ends[side], bare=count <= FEW)
    layers.append(Layer(tuple(end for end in ends if end >= 0), 0))
    layers.append(Layer((len(layers) - 1,), 2))
    return layers


NETWORKS = {"residual": residual, "towers": towers}
COSTS = ("lognormal", "pareto", "ties", "zeros")
WORTHS = ("uniform", "signed", "pareto", "ties", "cost")


def instance(kind: str, count: int, seed: int) -> tuple[np.ndarray, Table, float]:
    """Importance, times and a feasible rho; twenty seeds in a row see every family of both."""
    rng = np.random.default_rng([seed, count])
    draw, worth = COSTS[seed % len(COSTS)], WORTHS[seed % len(WORTHS)]
    if kind == "chain":
        table = chain_table(times(rng, draw, count), times(rng, draw, count), 150.0 * count)
    else:
        table = network_table(NETWORKS[kind](count, rng), rng, draw)
    importance = worths(rng, worth, table)
    if not (importance > 0.0).any():
        importance[rng.integers(len(importance))] = 1.0
    members, costs = table.conditions
    alone = table.t_forward + costs @ members
    smallest = alone[importance > 0.0].min() / table.t_full
    return importance, table, min(1.0, smallest + rng.random() * (1.0 - smallest))

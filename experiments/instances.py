"""Random timing tables to try the selector on: chains and branched networks.

A network is a list of layers; the backward op that carries the gradient past a layer is needed by
every tensor upstream of it, which is where the dependency sets of a real profile come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from elastic_tf.timing.profile import CostItem, TimingProfile

# Networks asked for with no more tensors than this have no batch normalisation.
FEW = 12


class Layer(NamedTuple):
    """`inputs` are indices of earlier layers; `fused`: one op makes all its gradients (BN)."""

    inputs: tuple[int, ...]
    tensors: int
    fused: bool = False


def table_of(
    sets: Iterable[tuple[Iterable[int], float]], count: int, t_forward: float
) -> TimingProfile:
    """A profile of `count` tensors from sets of them with the microseconds that each set needs."""
    items = tuple(CostItem(tuple(tensors), time) for tensors, time in sets)
    return TimingProfile(float(t_forward), items, count)


def network_table(layers: list[Layer], rng: np.random.Generator, draw: str) -> TimingProfile:
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
    return table_of(sets, count, rng.uniform(0.2, 0.7) * total)


def times(rng: np.random.Generator, draw: str, count: int) -> np.ndarray:
    """Positive times: "lognormal", "pareto" (heavy tail), "ties" (few values), "zeros" (half)."""
    if draw == "pareto":
        return 10.0 * (1.0 + rng.pareto(1.1, count))
    if draw == "ties":
        return rng.integers(1, 4, count) * 50.0
    if draw == "zeros":
        return rng.integers(0, 2, count) * rng.lognormal(5.0, 1.0, count)
    return rng.lognormal(5.0, 1.2, count)


def worths(rng: np.random.Generator, draw: str, table: TimingProfile) -> np.ndarray:
    """Importance: "uniform", "signed", "pareto", "ties", "cost" (as the time alone, noisy)."""
    count = table.count
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


def instance(kind: str, count: int, seed: int) -> tuple[np.ndarray, TimingProfile, float]:
    """Importance, times and a feasible rho; twenty seeds in a row see every family of both."""
    rng = np.random.default_rng([seed, count])
    draw, worth = COSTS[seed % len(COSTS)], WORTHS[seed % len(WORTHS)]
    if kind == "chain":
        t_dw, t_dy = times(rng, draw, count), times(rng, draw, count)
        table = TimingProfile.from_chain(t_dw=t_dw, t_dy=t_dy, t_forward=150.0 * count)
    else:
        table = network_table(NETWORKS[kind](count, rng), rng, draw)
    importance = worths(rng, worth, table)
    if not (importance > 0.0).any():
        importance[rng.integers(len(importance))] = 1.0
    members, costs = table.conditions
    alone = table.t_forward + costs @ members
    smallest = alone[importance > 0.0].min() / table.t_full
    return importance, table, min(1.0, smallest + rng.random() * (1.0 - smallest))

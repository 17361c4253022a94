"""Which kernels, and which of their channels, are trained within two budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from elastic_tf import arguments
from elastic_tf.memory.kernels import KernelCosts
from elastic_tf.plan import EXACT, FROZEN, NAMES, Plan


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

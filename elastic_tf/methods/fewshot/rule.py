"""Which kernels, and which of their channels, are trained within two budgets: two rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from elastic_tf import arguments
from elastic_tf.choose.selection.mixed_integer import best_choices
from elastic_tf.choose.selection.problem import Choices
from elastic_tf.memory.kernels import KernelCosts
from elastic_tf.plan import EXACT, FROZEN, NAMES, Plan

# Which of the choices for kernels (1, n) pay for what each tensor (N, 1) costs: to keep its inputs,
# to keep what its results need, and to pass the gradient through it.
_PAYS = (np.equal, np.greater_equal, np.greater)
_WEIGHTS = 16  # bytes of a trained number, its gradient and Adam's two


class Budgets(NamedTuple):
    """Most bytes of `KernelCosts.memory`, and most `KernelCosts.backward_macs`; infinite: any."""

    memory: float
    macs: float

    @classmethod
    def of(cls, costs: KernelCosts, memory: int | str | None, compute: float) -> Budgets:
        """Budgets as users give them: bytes, and a share of a whole backward pass.

        Raises:
            ValueError: inference takes more memory.
        """
        arguments.number("compute", compute, low=0.0, high=1.0, above=True)
        most = float("inf") if memory is None else arguments.memory("memory", memory)
        if most < costs.peak:
            raise ValueError(
                f"`memory` must be what inference takes, {costs.peak} bytes, or more. Received: "
                f"memory={memory!r}. Give more, or take smaller images or a smaller network."
            )
        return cls(most, compute * costs.full_macs)


class Offer(NamedTuple):
    """A way to train a tensor: the part of it that is trained, and what that is worth."""

    tensor: int
    mode: str
    share: float
    worth: float


def exact_rule(worth: Mapping[int, np.ndarray], costs: KernelCosts, budgets: Budgets) -> Plan:
    """The channels of most worth together within both budgets, to a gap of 0.1 %.

    maximise sum of the worth of the trained channels, one share of channels for each kernel

    Args and errors are those of `paper_rule`. The solver is that of a limited memory.
    """
    offers = [
        Offer(k, name, share, float(np.sort(worth[k])[::-1][:count].sum()))
        for k in sorted(worth)
        for name, count, share in costs.shares_of(k)
    ]
    found = search(offers, costs, budgets)
    if not found:
        raise _nothing_fits(budgets, len(worth))
    plan = Plan(np.full(len(costs.sizes), FROZEN))
    for offer in found:
        plan = with_best(plan, offer.tensor, offer.mode, worth[offer.tensor], costs)
    return plan


def search(offers: Sequence[Offer], costs: KernelCosts, budgets: Budgets) -> list[Offer]:
    """The offers of most worth together within both budgets, to a gap of 0.1 %.

    Args:
        offers: those of one tensor beside each other.
        costs: of the network's tensors.
        budgets: most memory and most multiply-adds.
    """
    kernel = np.array([offer.tensor for offer in offers])
    share = np.array([offer.share for offer in offers])
    weights = _WEIGHTS * share * costs.sizes[kernel]
    count = len(costs.sizes)
    every, behind = np.arange(count)[:, None], kernel[None]
    # paid by each choice alone, by all of a kernel, by what lies before a kept result or a kernel
    member = np.vstack([np.eye(len(kernel), dtype=bool), *(f(every, behind) for f in _PAYS)])
    macs = [share * costs.macs[kernel], np.zeros(2 * count), costs.macs]
    saved = [weights, costs.inputs, costs.kept, np.zeros(count)]
    alone = [weights, np.zeros(3 * count)]
    cost = np.stack([np.concatenate(part) for part in (macs, saved, alone)], axis=1)
    room = np.array([budgets.macs, budgets.memory, budgets.memory - costs.peak])
    room = np.minimum(room, 2.0 * cost.sum(axis=0) + 1.0)  # a budget may be infinite
    worth, none = np.array([offer.worth for offer in offers]), np.zeros(len(kernel), bool)
    found = best_choices(Choices(kernel, member, cost), worth, room, none).chosen
    return [offer for offer, is_chosen in zip(offers, found) if is_chosen]


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
        raise _nothing_fits(budgets, len(worth))
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


def _nothing_fits(budgets: Budgets, kernels: int) -> ValueError:
    return ValueError(
        "A kernel must fit into both budgets. Received: "
        f"{budgets.memory:g} bytes and {budgets.macs:.0f} multiply-adds, which none of "
        f"{kernels} kernels keeps to. Raise `memory` or `compute`."
    )

"""The choices that a profile offers: a mode for each tensor, and what each costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from elastic_tf.choose.selection.problem import Choices

if TYPE_CHECKING:
    from elastic_tf.timing.profile import TimingProfile


def offered(profile: TimingProfile, modes: Sequence[str] = ()) -> tuple[Choices, np.ndarray]:
    """Exact, and these modes where the profile has them and they are not slower.

    The choices, tensor by tensor, and the column of each: 0 for exact, which comes first.
    """
    members, times = profile.conditions
    if not modes:
        return Choices(np.arange(profile.count), members, times[:, None]), np.zeros(
            profile.count, int
        )
    found = [(k, 0, None) for k in range(profile.count)] + [
        (k, column, cost)
        for column, name in enumerate(modes, 1)
        for k in range(profile.count)
        if (cost := profile.mode_costs.get((k, name))) and cost.time - cost.spared < profile.t_dw[k]
    ]
    found.sort(key=lambda one: one[:2])
    tensor, mode = (np.array([one[part] for one in found]) for part in (0, 1))
    member = members[:, tensor]
    member[members.sum(axis=1) == 1] &= mode == 0  # what exact training of a tensor alone takes
    place = {tuple(np.flatnonzero(row).tolist()): at for at, row in enumerate(members)}
    others = np.flatnonzero(mode)
    costs = [cost for *_, cost in found if cost is not None]
    refunds = [
        (int(k), place[cost.shared], cost.spared)
        for k, cost in zip(others, costs)
        if cost.shared in place
    ]
    own = np.eye(len(tensor), dtype=bool)[others]
    paid = np.append(times, [cost.time for cost in costs])[:, None]
    return Choices(tensor, np.vstack([member, own]), paid, refunds), mode


def with_bytes(
    choices: Choices,
    mode: np.ndarray,
    items: tuple[np.ndarray, np.ndarray, np.ndarray],
    modes: Sequence[str],
) -> Choices:
    """The same with memory as a second resource.

    A filtered kernel keeps 1 / r^2 of what is kept for it alone; other modes as much as exact. Of
    what a rectifier gives it, a byte of four stays for the tensors before: the kernel is the last
    tensor that needs it. `items` are those of a `Limit`.
    """
    members, sizes, rectified = items
    scale = np.array([1.0, *(_share_kept(name) for name in modes)])[mode]
    is_cut = scale < 1.0
    if not is_cut.any():
        rectified = np.zeros_like(rectified)
    alone = members.sum(axis=1) == 1
    shared = ~alone & (rectified > 0.0)
    last = members.shape[1] - 1 - members[:, ::-1].argmax(axis=1)
    is_last = last[:, None] == choices.tensor
    member = members[:, choices.tensor]
    member[alone] &= mode == 0
    member[shared] &= ~(is_last & is_cut)[shared]
    own = (sizes[alone] @ members[alone])[choices.tensor]
    own += is_cut * (rectified[shared] @ is_last[shared])
    others = np.flatnonzero(mode)
    saved = 0.75 * rectified * shared
    rows = [member, (is_last & ~is_cut)[shared], np.eye(len(mode), dtype=bool)[others]]
    size = np.concatenate([sizes - saved, saved[shared], (own * scale)[others]])
    cost = np.zeros((len(choices.cost) + len(size), 2))
    cost[: len(choices.cost), :1], cost[len(choices.cost) :, 1] = choices.cost, size
    return choices._replace(member=np.vstack([choices.member, *rows]), cost=cost)


def _share_kept(mode: str) -> float:
    """Share of an exact kernel's memory that a mode keeps."""
    kind, _, r = mode.partition(":")
    return 1.0 / int(r) ** 2 if kind == "filtered" else 1.0

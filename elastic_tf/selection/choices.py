"""The choices that a profile offers: a mode for each tensor, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from elastic_tf.selection.problem import Problem, Solution, reduce

if TYPE_CHECKING:
    from elastic_tf.timing.cost_items import ModeCost
    from elastic_tf.timing.profile import TimingProfile


@dataclass(frozen=True, eq=False)
class Choices:
    """Each mode of each tensor that was measured, tensor by tensor, exact first.

    Attributes:
        tensor: (n,) the tensor of each choice.
        mode: (n,) its column: 0 is exact.
        member: (S, n) bool, the choices that need each item.
        cost: (S, R) microseconds of the items, and bytes where memory is limited.
        refund: (n, R) what the choice takes off an item.
        refunded: (n,) that item; -1 for none.
    """

    tensor: np.ndarray
    mode: np.ndarray
    member: np.ndarray
    cost: np.ndarray
    refund: np.ndarray
    refunded: np.ndarray

    @classmethod
    def of(cls, profile: TimingProfile, modes: Sequence[str] = ()) -> Choices:
        """Exact, and these modes where the profile has them and they are not slower."""
        members, times = profile.conditions
        offered: list[tuple[int, int, ModeCost | None]] = []
        for k in range(profile.count):
            offered.append((k, 0, None))
            for column, name in enumerate(modes, 1):
                cost = profile.mode_costs.get((k, name))
                if cost is not None and cost.time - cost.spared < profile.t_dw[k]:
                    offered.append((k, column, cost))
        tensor, mode = (np.array([one[part] for one in offered]) for part in (0, 1))
        member = members[:, tensor]
        member[members.sum(axis=1) == 1] &= mode == 0
        place = {tuple(np.flatnonzero(row).tolist()): at for at, row in enumerate(members)}
        others = np.flatnonzero(mode)
        costs = [cost for _, _, cost in offered if cost is not None]
        refund, refunded = np.zeros((len(tensor), 1)), np.full(len(tensor), -1)
        refund[others, 0] = [cost.spared for cost in costs]
        refunded[others] = [place.get(cost.shared, -1) for cost in costs]
        own = np.eye(len(tensor), dtype=bool)[others]
        paid = np.concatenate([times, [cost.time for cost in costs]])[:, None]
        return cls(tensor, mode, np.vstack([member, own]), paid, refund, refunded)

    def with_bytes(
        self, members: np.ndarray, sizes: np.ndarray, rectified: np.ndarray, modes: Sequence[str]
    ) -> Choices:
        """The same with memory as a second resource.

        A filtered kernel keeps 1 / r^2 of what is kept for it alone; other modes as much as exact.
        Of what a rectifier gives it, a byte of four stays for the tensors before: the kernel is
        the last tensor that needs it.

        Args:
            members: (S, N) bool, the tensors that need each piece of memory.
            sizes: (S,) bytes.
            rectified: (S,) how many of these a rectifier gave.
            modes: names of the modes.
        """
        scale = np.array([1.0, *(_share_kept(name) for name in modes)])[self.mode]
        if scale.min() == 1.0:
            rectified = np.zeros_like(rectified)
        alone = members.sum(axis=1) == 1
        last = members.shape[1] - 1 - members[:, ::-1].argmax(axis=1)
        is_last = last[:, None] == self.tensor
        member = members[:, self.tensor]
        member[alone] &= self.mode == 0
        shared = ~alone & (rectified > 0.0)
        member[shared] &= ~(is_last & (scale < 1.0))[shared]
        whole = is_last & (scale == 1.0)  # who needs all four bytes
        own = (sizes[alone] @ members[alone])[self.tensor]
        own += np.where(scale < 1.0, rectified[shared] @ is_last[shared], 0.0)
        others = np.flatnonzero(self.mode)
        rest = own[others] * scale[others]
        alike = np.eye(len(self.tensor), dtype=bool)[others]
        saved = 0.75 * rectified * shared
        sizes = np.concatenate([sizes - saved, saved[shared], rest])[:, None]
        member = np.vstack([member, whole[shared]])
        both = [np.pad(self.cost, ((0, 0), (0, 1))), np.pad(sizes, ((0, 0), (1, 0)))]
        return replace(
            self,
            member=np.vstack([self.member, member, alike]),
            cost=np.vstack(both),
            refund=np.pad(self.refund, ((0, 0), (0, 1))),
        )

    def extended(
        self,
        chosen: np.ndarray,
        worth: np.ndarray,
        room: np.ndarray,
        strategy: Callable[[Problem], Solution],
    ) -> tuple[np.ndarray, float]:
        """The chosen ones with the best of the others, and the most that these can be worth.

        Args:
            chosen: (n,) bool, which fit.
            worth: (n,) of the choices.
            room: (R,) microseconds beside the forward pass, and bytes.
            strategy: one of `elastic_tf.selection.selector.STRATEGIES`.
        """
        problem = reduce(
            worth,
            self.tensor,
            self.member,
            self.cost,
            room,
            chosen,
            self.refund,
            self.refunded,
        )
        solution = strategy(problem)
        added = np.isin(np.arange(len(worth)), problem.index[solution.chosen])
        return chosen | added, solution.bound * problem.scale


def _share_kept(mode: str) -> float:
    """Share of an exact kernel's memory that a mode keeps."""
    kind, _, r = mode.partition(":")
    return 1.0 / int(r) ** 2 if kind == "filtered" else 1.0

"""The budget: what part of a full training step the selected tensors may take.

`rho` is a number or a schedule `epoch -> rho`; times are microseconds per step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Union

from elastic_tf.selection import check_rho

if TYPE_CHECKING:
    from elastic_tf.timing import TimingProfile

Rho = Union[float, Callable[[int], float]]


def rho_at(rho: Rho, epoch: int) -> float:
    """Allowed step time / full step time in one epoch.

    Args:
        rho: a number in (0, 1], or a schedule `epoch -> rho`.
        epoch: the epoch asked for, from 0.

    Returns:
        A number in (0, 1].

    Raises:
        ValueError: the number, or what the schedule returned, is not in (0, 1].
    """
    if not callable(rho):
        check_rho(rho)
        return float(rho)
    value = rho(epoch)
    check_rho(value, where=f" from the schedule at epoch {epoch}")
    return float(value)


def step_budget(rho: float, profile: TimingProfile) -> float:
    """Microseconds that a training step may take: rho * t_full."""
    check_rho(rho)
    return rho * profile.t_full


def backward_budget(rho: float, profile: TimingProfile) -> float:
    """Microseconds left for the backward pass and the update: rho * t_full - t_forward."""
    return step_budget(rho, profile) - profile.t_forward

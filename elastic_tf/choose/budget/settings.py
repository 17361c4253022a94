"""What a user asks of an elastic `fit`, checked where it comes in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from elastic_tf import arguments
from elastic_tf.timing.profile import TimingProfile


@dataclasses.dataclass(frozen=True)
class Deadline:
    """Seconds that a whole `fit` may take, everything included: `rho=et.Deadline(600)`.

    `rho` then follows from the time left at every selection, and training stops a few steps early
    rather than late.

    Attributes:
        seconds: from the beginning of `fit` to its end; above 0.
    """

    seconds: float

    def __post_init__(self) -> None:
        hint = "It counts the seconds from the beginning of `fit`: 600 for ten minutes."
        arguments.number("seconds", self.seconds, low=0.0, above=True, hint=hint)


@dataclasses.dataclass(frozen=True)
class Control:
    """How the achieved step ratio is kept at `rho`.

    Attributes:
        share: part of the training time that timing full steps and selecting between two intervals
            may take, in [0, 1); 0 measures nothing and goes by the profile alone.
    """

    share: float = 0.05

    def __post_init__(self) -> None:
        arguments.part("share", self.share)


#: A ratio, a schedule that gives one for each epoch, or the seconds for the whole `fit`.
Rho = float | Callable[[int], float] | Deadline


@dataclasses.dataclass(frozen=True, eq=False)
class Settings:
    """The settings of an `ElasticCallback`; its arguments are documented there."""

    profile: TimingProfile | None
    rho: Rho
    interval: int
    probe: Any  # a Probe
    importance: Callable[..., np.ndarray]
    required: np.ndarray | None
    control: Control
    verbose: int
    memory: int | str | None = None

    def __post_init__(self) -> None:
        if self.profile is not None:
            hint = "Measure one with elastic_tf.profile_model, or leave it out."
            arguments.instance("profile", self.profile, TimingProfile, "a TimingProfile", hint=hint)
        if not (callable(self.rho) or isinstance(self.rho, Deadline)):
            arguments.rho("rho", self.rho)
        arguments.count("interval", self.interval)
        hint = "See elastic_tf.choose.importance."
        arguments.instance("importance", self.importance, Callable, "a function", hint)
        arguments.instance("control", self.control, Control, "an elastic_tf.Control")
        arguments.count("verbose", self.verbose, least=0)
        if self.required is not None and self.profile is not None:
            hint = "elastic_tf.app.zoo.head_tensors(model) makes one."
            arguments.mask("required", self.required, self.profile.count, hint=hint)
        if self.memory is not None:
            arguments.memory("memory", self.memory)

    @property
    def deadline(self) -> float | None:
        """Seconds for the whole `fit`; None where `rho` is asked for."""
        return self.rho.seconds if isinstance(self.rho, Deadline) else None

    def made_of(self) -> dict[str, Any]:
        """What must be the same in a training that goes on, as JSON values."""
        rho: Any = self.rho
        if isinstance(rho, Deadline):
            rho = f"Deadline of {rho.seconds:g} s"
        return {
            "rho": _name(rho) if callable(rho) else rho,
            "interval": self.interval,
            "importance": _name(self.importance),
            "memory": str(self.memory),
        }

    def rho_at(self, epoch: int) -> float:
        """Allowed step time / full step time in that epoch, in (0, 1]; 1 with a deadline."""
        if isinstance(self.rho, Deadline):
            return 1.0
        if not callable(self.rho):
            return float(self.rho)
        value = self.rho(epoch)
        arguments.rho("rho", value, hint=f"The schedule gave it for epoch {epoch}.")
        return float(value)


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))

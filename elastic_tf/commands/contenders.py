"""What a comparison is asked for: methods and learning rates from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from elastic_tf import arguments, baselines
from elastic_tf.selection import check_rho


class Contender(NamedTuple):
    """A method and the share of the step time that it is given, None for those that take none."""

    name: str  # "elastic@0.5"
    method: str
    rho: float | None


class Cost(NamedTuple):
    """Seconds of a training: once, for tracing, and for each epoch."""

    once: float
    each: float

    def seconds(self, epochs: int) -> float:
        """Of a training of so many epochs."""
        return self.once + epochs * self.each


Plan = dict[Contender, tuple[float, int]]  # learning rate and epochs of each method


def contenders(text: str) -> list[Contender]:
    """Methods from a command line.

    Raises:
        ValueError: an unknown method, one named twice, or a `rho` where there must be none.
    """
    found = []
    for name in (part.strip() for part in text.split(",") if part.strip()):
        method, _, share = name.partition("@")
        arguments.choice("methods", method, baselines.NAMES)
        takes_rho = baselines.METHODS[method].needs_profile
        if bool(share) != takes_rho:
            rule = f"takes a rho, as in {method}@0.5" if takes_rho else "takes no rho"
            raise ValueError(f"The method '{method}' {rule}. Received: {name!r}.")
        try:
            rho = float(share) if share else None
        except ValueError:
            rho = float("nan")
        if rho is not None:
            check_rho(rho)
        found.append(Contender(name, method, rho))
    names = [one.name for one in found]
    if not found or len(set(names)) < len(names):
        raise ValueError(f"`methods` must be different methods. Received: {text!r}.")
    return found


def rates_of(text: str) -> list[float]:
    """Learning rates from a command line.

    Raises:
        ValueError: not positive numbers.
    """
    try:
        rates = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ValueError(
            f"`rates` must be learning rates above 0. Received: {text!r}. Use 1e-5,1e-4."
        )
    return rates


def budget_of(text: str, names: Sequence[str]) -> tuple[str, float]:
    """A share of the seconds of one method: "full:0.5".

    Raises:
        ValueError: an unknown method or a share that is not above 0.
    """
    name, _, number = text.rpartition(":")
    try:
        share = float(number)
    except ValueError:
        share = float("nan")
    if name not in names or not 0 < share < float("inf"):
        raise ValueError(
            f"`budget` must be one of the methods {', '.join(names)} and a share of its seconds, "
            f"as in {names[0]}:0.5. Received: {text!r}."
        )
    return name, share

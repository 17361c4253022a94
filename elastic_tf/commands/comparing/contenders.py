"""What a comparison is asked for: methods, learning rates and seconds from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from elastic_tf import arguments
from elastic_tf.commands import names
from elastic_tf.commands.training import sources
from elastic_tf.commands.training.run_settings import check_warm_up
from elastic_tf.selection.selector import check_rho

# Seconds above those of the reference that count as equal: what is measured varies as much.
_EQUAL = 1.03


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


class Question(NamedTuple):
    """What is compared.

    Attributes:
        contenders: the methods.
        rates: learning rates to choose from.
        budget: a method, and the share of its seconds that each method gets.
    """

    contenders: list[Contender]
    rates: list[float]
    budget: tuple[str, float]


def asked(settings: Any) -> Question:
    """What the settings of the command `compare` ask for.

    Raises:
        ValueError: one of them cannot be.
    """
    found = contenders(settings.methods)
    known = [one.name for one in found]
    if settings.reference not in known:
        raise ValueError(
            f"`reference` must be one of the methods {', '.join(known)}. Received: "
            f"{settings.reference!r}. Use --reference {known[0]}."
        )
    if settings.seeds < 1 or settings.epochs < 1:
        raise ValueError(
            "There must be at least one seed and one epoch. Received: "
            f"seeds={settings.seeds}, epochs={settings.epochs}."
        )
    if not 0 < settings.validation < 1:
        raise ValueError(
            "Rates are chosen on a validation part: `validation` must be in (0, 1). Received: "
            f"{settings.validation}."
        )
    sources.augmentations(settings.augment)
    check_warm_up(settings.warm_up)
    rates = rates_of(settings.rates)
    budget = budget_of(settings.budget or f"{settings.reference}:{_EQUAL}", known)
    return Question(found, rates, budget)


def contenders(text: str) -> list[Contender]:
    """Methods from a command line.

    Raises:
        ValueError: an unknown method, one named twice, or a `rho` where there must be none.
    """
    found = []
    for name in (part.strip() for part in text.split(",") if part.strip()):
        method, _, share = name.partition("@")
        arguments.choice("methods", method, names.METHODS)
        takes_rho = names.NEEDS_PROFILE[method]
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
    if not found or len({one.name for one in found}) < len(found):
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


def budget_of(text: str, known: Sequence[str]) -> tuple[str, float]:
    """A share of the seconds of one method: "full:0.5".

    Raises:
        ValueError: an unknown method or a share that is not above 0.
    """
    name, _, number = text.rpartition(":")
    try:
        share = float(number)
    except ValueError:
        share = float("nan")
    if name not in known or not 0 < share < float("inf"):
        raise ValueError(
            f"`budget` must be one of the methods {', '.join(known)} and a share of its seconds, "
            f"as in {known[0]}:0.5. Received: {text!r}."
        )
    return name, share

r"""Adapt a pre-trained model to new images by one method: one run, one directory, one table.

Example::

    python -m elastic_tf train --model mobilenet --alpha 0.75 --weights mobilenet.h5 \
        --data birds --rho 0.35 --profile mobilenet.json --out runs/birds
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from elastic_tf import arguments as checks
from elastic_tf.app import runs
from elastic_tf.app.commands import options
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.files import directory
from elastic_tf.timing.profile import TimingProfile

_MOST_SEED = 2**32 - 1  # of NumPy


def _method(name: str, value: str) -> None:
    """Refuse a method that there is not; one of a file is found when the file is loaded."""
    if ":" not in value:
        checks.choice(name, value, options.METHODS)


@dataclasses.dataclass(frozen=True)
class Settings(options.Adaptation):
    """One run."""

    method: str = option(
        "elastic",
        help=f"how to choose what to train: {', '.join(options.METHODS)}; "
        "or FILE.py:NAME, a method of your own",
        check=_method,
    )
    rho: float | None = option(
        None,
        help="allowed step time / full step time, for methods that keep to one: 0.5 if left out",
        check=checks.rho,
    )
    seconds: float | None = option(
        None,
        help="in place of rho: until the trained weights are there, from the start of the program",
        check=partial(checks.number, low=0.0, above=True),
    )
    memory: str | None = option(
        None,
        help="what a step may take, for the same methods: '256 MiB' or bytes",
        check=checks.memory,
    )
    learning_rate: float | None = option(
        None, help="learning rate at its highest; 3.5e-4 if left out", check=checks.rate
    )
    schedule: str = option("cosine", help="of the learning rate", choices=("cosine", "constant"))
    patience: int | None = option(
        None,
        help="end after so many epochs without better validation accuracy; best with a constant "
        "schedule, for a cosine is made for all epochs",
        check=checks.count,
    )
    balanced: bool = option(False, help="weigh each class alike, however many images it has")
    skip_bad_images: bool = option(False, help="train on the rest where a file is no image")
    seed: int = option(
        0, help="of weights, order and draws", check=partial(checks.count, least=0, most=_MOST_SEED)
    )
    quiet: bool = option(False, help="show no progress")

    @property
    def budget(self) -> dict[str, Any]:
        """What the method has to keep to."""
        return {name: getattr(self, name) for name in ("rho", "seconds", "memory")}

    def rate(self) -> float:
        """The learning rate at its highest."""
        from elastic_tf.choose.budget.course import RATE

        return RATE if self.learning_rate is None else self.learning_rate


def _seconds_alone(settings: Settings) -> None:
    """Refuse what says how to train beside `seconds`, which does."""
    for name in ("rho", "memory", "patience"):
        if (value := getattr(settings, name)) is not None:
            raise ValueError(
                f"`{name}` has no place beside `seconds`, from which follows what is trained. "
                f"Received: {name}={value} and seconds={settings.seconds:g}. Leave one of them out."
            )
    if settings.method != "elastic":
        raise ValueError(
            "`seconds` is for the method elastic. Received: "
            f"seconds={settings.seconds:g} for {settings.method}. Give epochs instead."
        )


def main(arguments: Sequence[str] | None = None) -> runs.Run:
    """Load, make the head, profile, train, measure, print."""
    started = time.perf_counter()
    settings = parse(Settings, __doc__ or "", arguments)
    # a method of a file may keep to a share of the step time, too
    if ":" not in settings.method and settings.method not in options.WITHIN_RHO:
        options.no_budget(settings.method, **settings.budget)
    if settings.seconds is not None:
        _seconds_alone(settings)
    if settings.patience is not None and not settings.validation:
        raise ValueError(
            "`patience` needs validation images, for the test images must not choose. Received: "
            f"patience={settings.patience} and validation=0. Leave one of them out."
        )
    directory(settings.out)
    profile = None if settings.profile is None else TimingProfile.load(settings.profile)
    from elastic_tf.app.commands.training import work

    return work.run(settings, profile, started)

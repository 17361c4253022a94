"""The command `train`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from elastic_tf.app import runs
from elastic_tf.app.commands.commandline import parse
from elastic_tf.app.commands.settings import WITHIN_RHO, Train
from elastic_tf.files import directory
from elastic_tf.timing.profile import TimingProfile


def train(arguments: Sequence[str] | None = None) -> runs.Run:
    r"""Adapt a pre-trained model to new images by one method: one run, one directory, one table.

    Example::

        python -m elastic_tf train --model mobilenet --alpha 0.75 --weights mobilenet.h5 \
            --data birds --rho 0.35 --profile mobilenet.json --out runs/birds
    """
    started = time.perf_counter()
    settings = parse(Train, train.__doc__, arguments)
    # a method of a file may keep to a share of the step time, too
    if ":" not in settings.method and settings.method not in WITHIN_RHO:
        settings.no_budget()
    if settings.seconds is not None:
        _seconds_alone(settings)
    if settings.patience is not None and not settings.validation:
        raise ValueError(
            "`patience` needs validation images, for the test images must not choose. Received: "
            f"patience={settings.patience} and validation=0. Leave one of them out."
        )
    directory(settings.out)
    profile = None if settings.profile is None else TimingProfile.load(settings.profile)
    from elastic_tf.app.commands import training

    return training.run(settings, profile, started)


def _seconds_alone(settings: Train) -> None:
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

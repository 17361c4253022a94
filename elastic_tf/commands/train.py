r"""Adapt a pre-trained model to new images by one method: one run, one directory, one table.

Example::

    python -m elastic_tf train --method elastic --model mobilenet --alpha 0.75 \
        --weights mobilenet.h5 --data birds --rho 0.5 --epochs 6 \
        --batch-size 4 --optimizer adam --learning-rate 1e-4 --warm-up 0.15 \
        --profile mobilenet.json --out runs/birds
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from elastic_tf.commands import options
from elastic_tf.commands.commandline import command, option, parse
from elastic_tf.runs import run as runs
from elastic_tf.timing import runtime
from elastic_tf.timing.profile import TimingProfile


@dataclasses.dataclass(frozen=True)
class Settings(options.Adaptation):
    """One run."""

    method: str = option("elastic", help=options.METHODS)
    rho: float | None = option(
        None,
        help="allowed step time / full step time, for methods that keep to one: 0.5 if left out",
    )
    learning_rate: float = option(1e-4, help="learning rate at the start", alias="--lr")
    schedule: str = option("cosine", help="of the learning rate", choices=("cosine", "constant"))
    skip_bad_images: bool = option(False, help="train on the rest where a file is no image")
    strategy: str = option(
        "none",
        help="where to train: here, on all devices, or on all of TF_CONFIG's workers",
        choices=("none", "mirrored", "multiworker"),
    )
    seed: int = option(0, help="of weights, order and draws")
    quiet: bool = option(False, help="show no progress")


def main(arguments: Sequence[str] | None = None) -> runs.Run:
    """Load, make the head, profile, train, measure, print.

    Without `arguments` the program is started again where the profile asks for other settings.
    """
    settings = parse(Settings, __doc__ or "", arguments)
    profile = None if settings.profile is None else TimingProfile.load(settings.profile)
    if profile is not None and arguments is None:
        runtime.restart_under(profile.settings, command("train", sys.argv[1:]))
    from elastic_tf.commands.training import work

    return work.run(settings, profile)

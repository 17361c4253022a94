r"""Adapt a pre-trained model to new images by one method: one run, one directory, one table.

Example::

    python -m elastic_tf train --method elastic --model mobilenet --alpha 0.75 \
        --weights mobilenet.h5 --data birds --rho 0.5 --epochs 6 \
        --batch-size 4 --optimizer adam --learning-rate 1e-4 --warm-up 0.15 \
        --warm-head 2 --profile mobilenet.json --out runs/birds
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from elastic_tf.commands import commandline, names
from elastic_tf.commands.commandline import parse
from elastic_tf.commands.training import sources
from elastic_tf.commands.training.run_settings import Settings, completed
from elastic_tf.runs import run
from elastic_tf.timing import runtime
from elastic_tf.timing.profile import TimingProfile


def main(arguments: Sequence[str] | None = None) -> run.Run:
    """Load, warm the head, profile, train, measure, print.

    Args:
        arguments: of the command line; None: those of the program, which is then started again
            where the profile asks for other runtime settings.
    """
    settings = completed(parse(Settings, __doc__ or "", arguments))
    sources.check(settings.data)
    profile = None if settings.profile is None else TimingProfile.load(settings.profile)
    if profile is not None and arguments is None:
        runtime.restart_under(profile.settings, commandline.command("train", sys.argv[1:]))
    if profile is not None:
        _check_batch(profile, settings)
    with commandline.loading("TensorFlow"):
        from elastic_tf.commands.training import work

    return work.run(settings, profile)


def _check_batch(profile: TimingProfile, settings: Settings) -> None:
    """Refuse a profile of another batch size before anything is loaded or trained."""
    size, given = profile.batch_size, settings.batch_size
    if names.NEEDS_PROFILE[settings.method] and size not in (0, given):
        profiling = commandline.command("profile", ["--batch-size", str(given)])
        raise ValueError(
            f"The profile must be of the same batch size. Received: --batch-size {given} with "
            f"--profile {settings.profile} of batch size {size}. Use --batch-size {size}, or make "
            f"a profile with `{commandline.typed(profiling)}`."
        )

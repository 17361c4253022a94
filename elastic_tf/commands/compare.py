r"""Compare methods: at equal epochs and at equal seconds, each at the learning rate that suits it.

Example::

    python -m elastic_tf compare --data birds --model mobilenet --alpha 0.75 \
        --weights mobilenet.h5 --input-size 128 \
        --methods full,traditional_tl,random@0.5,elastic@0.5 \
        --reference elastic@0.5 --out runs/birds

Every training is a run of the command `train` in a directory of its own: an interrupted comparison
goes on where it stopped. For each seed the new head is trained alone once, and all methods start
from it. The learning rate of a method is the one of `--rates` with the best accuracy on the
validation parts in the mean over all seeds, of equal ones the one with the smaller loss there; all
methods train at the same rates with the same seeds. The accuracies in the tables are those on the
test images, which are looked at once, at the end of each training.

Seconds are given at reference speed, for the speed of a shared machine drifts: steps, times the
step ratio timed in turn with full steps, times one full step time for all; selecting and tracing
count for as many steps as they took the time of in that training. Seconds as they passed stand
beside them. At equal seconds each method trains, on a schedule of its own, as many epochs as fit
into the seconds of the reference, where 3 % more counts as equal, or into those of `--budget`.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from elastic_tf import __version__
from elastic_tf.commands import names
from elastic_tf.commands.checking import machine
from elastic_tf.commands.commandline import command, loading, option, parse
from elastic_tf.commands.comparing import contenders, trials
from elastic_tf.commands.training import sources
from elastic_tf.files.atomic import write_json
from elastic_tf.files.json_form import now, to_json
from elastic_tf.files.table import Column, format_table
from elastic_tf.timing.device import describe_device


@dataclasses.dataclass(frozen=True)
class Settings:
    """The comparison."""

    data: str = option(help=sources.HELP)
    out: Path = option(help="directory for all runs and comparison.json")
    methods: str = option(
        "full,traditional_tl,bn_bias,random@0.5,elastic@0.5",
        help="separated by commas; @rho for those that keep to a share of the step time",
    )
    reference: str = option("elastic@0.5", help="the method that the others are compared with")
    rates: str = option("1e-5,3e-5,1e-4,3e-4", help="learning rates to choose from")
    seeds: int = option(3, help="how many trainings of each method, with seeds from 0")
    epochs: int = option(6, help="of each training at equal epochs")
    equal: str = option("both", help="what is equal", choices=("both", "epochs"))
    budget: str = option(
        "",
        help="those seconds, as a share of a method's at equal epochs: full:0.5; else the "
        "reference's",
    )
    tune_again: bool = option(False, help="choose rates anew for the epochs at equal seconds")
    model: str = option("mobilenet", help="model of the zoo", choices=names.MODELS)
    alpha: float = option(1.0, help="width multiplier, for models that have one")
    weights: str = option("imagenet", help="'imagenet', 'none', or a file of weights")
    input_size: int = option(224, help="height and width of the images in pixels")
    batch_size: int = option(4, help="images in a training step")
    optimizer: str = option("adam", help="optimizer", choices=names.OPTIMIZERS)
    warm_up: float = option(0.0, help="share of the steps in which the learning rate rises")
    warm_head: int = option(2, help="epochs that train the new head alone first")
    warm_head_rate: float = option(1e-3, help="learning rate of Adam meanwhile")
    validation: float = option(0.1, help="share of the training images to choose rates on")
    interval: int = option(3, help="epochs between two selections")
    probe_size: int = option(64, help="images on which importance is evaluated")
    flip: bool = option(False, help="flip training images at random")
    augment: str = option("none", help="randaugment, cutmix, mixup, or several with commas")
    profile: Optional[Path] = option(  # noqa: UP045 (read at run time, by 3.9 too)
        None, help="timing profile; measured first if left out"
    )


def main(
    arguments: Sequence[str] | None = None, launch: trials.Launch = trials.launched
) -> dict[str, Any]:
    """Train what is not there yet, print the tables, write the JSON."""
    words = sys.argv[1:] if arguments is None else arguments
    settings = parse(Settings, __doc__ or "", words)
    question = contenders.asked(settings)
    doubt = machine.doubt_of(machine.load())
    with loading("SciPy and Matplotlib"):
        from elastic_tf import plots
        from elastic_tf.commands.comparing import contest

    competition = contest.Contest(settings, question, launch)
    tables = competition.tables()
    result = {
        "settings": settings,
        "command": shlex.join(["python", *command("compare", words)]),
        "created": now(),
        "version": __version__,
        "device": describe_device(),
        "full_step_seconds": competition.full_step_seconds,
        "head_seconds": competition.head_seconds,
        "allowed_seconds": competition.allowed_seconds,
        "tables": tables,
    }
    for name, rows in tables.items():
        print(f"\n{settings.data}, {name.replace('_', ' ')}, {settings.seeds} seeds")
        print(format_table(rows, COLUMNS))
        if name == "equal_seconds":
            print(said_of_seconds(rows, competition.allowed_seconds))
        edges = [row["method"] for row in rows if row["rate_at_edge"]]
        if edges:
            print(f"The best rate is the first or the last that was tried: {', '.join(edges)}.")
        plots.save(plots.accuracy_and_cost(rows), settings.out / f"{name}.png")
    if settings.seeds == 2:
        print("Two seeds say little of the spread: with three, intervals are a third as wide.")
    print(doubt, end="")
    write_json(settings.out / "comparison.json", to_json(result))
    print(f"\nWritten to {settings.out / 'comparison.json'}, with a picture of each table")
    return to_json(result)


def said_of_seconds(rows: Sequence[Mapping[str, Any]], allowed: float) -> str:
    """What is equal at equal seconds, and where it is not: each method trains one epoch at least.

    Args:
        rows: of that table.
        allowed: seconds at reference speed.
    """
    slow = [row["method"] for row in rows if row["epochs"] == 1 and row["seconds"] > allowed]
    exceptions = f" A single epoch takes longer: {', '.join(slow)}." if slow else ""
    return f"Equal are {allowed:.0f} s, as many epochs as fit into them.{exceptions}"


COLUMNS = (
    Column("method", "method"),
    Column("rate", "rate", ".0e"),
    Column("epochs", "epochs", "d"),
    Column("accuracy", "test accuracy, %"),
    Column("seconds", "s", ".0f"),
    Column("raw_seconds", "s as passed", ".0f"),
    Column("ratio", "step ratio", ".3f"),
    Column("flops_ratio", "FLOPs ratio", ".3f"),
    Column("verdict", "against the reference"),
)

r"""Compare methods: at equal epochs and at equal seconds, each at the learning rate that suits it.

Example::

    python -m elastic_tf compare --data birds --model mobilenet --alpha 0.75 \
        --weights mobilenet.h5 --input-size 128 \
        --methods full,traditional_tl,random@0.5,elastic@0.5 \
        --reference elastic@0.5 --out runs/birds

Every training is a run of the command `train` in a directory of its own: an interrupted comparison
goes on where it stopped. All methods start from the same head, solved in closed form. The learning
rate of a method is the one of `--rates` with the best accuracy on the validation parts in the mean
over all seeds, of equal ones the one with the smaller loss there; all methods train at the same
rates with the same seeds. The accuracies in the tables are those on the test images, which are
looked at once, at the end of each training.

Seconds are those that passed, evaluation not counted: let nothing else run beside. At equal seconds
each method trains, on a schedule of its own, as many epochs as fit into the seconds of the
reference, where 3 % more counts as equal, or into those of `--budget`.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from elastic_tf import __version__
from elastic_tf.app.commands import options
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.files.atomic import write_json
from elastic_tf.files.json_form import now, to_json
from elastic_tf.files.table import format_table
from elastic_tf.timing.runtime import describe_device

COLUMNS = (
    *("method", "rate:.0e", "epochs:d", "accuracy::test accuracy, %"),
    *("seconds:.0f:s", "verdict::against the reference"),
)


@dataclasses.dataclass(frozen=True)
class Settings(options.Adaptation):
    """The comparison."""

    methods: str = option(
        "full,traditional_tl,bn_bias,random@0.5,elastic@0.5",
        help="separated by commas; @rho for those that keep to a share of the step time",
    )
    reference: str = option("elastic@0.5", help="the method that the others are compared with")
    rates: str = option("1e-5,3e-5,1e-4,3e-4", help="learning rates to choose from")
    seeds: int = option(3, help="how many trainings of each method, with seeds from 0")
    epochs: int = option(6, help="of each training at equal epochs")
    budget: str = option(
        "", help="the equal seconds, as a share of a method's: full:0.5; else the reference's"
    )


def main(arguments: Sequence[str] | None = None, launch: Any = None) -> dict[str, Any]:
    """Train what is not there yet, print the tables, write the JSON.

    `launch` trains with the words of `train`, its output in a file; by default in a child process.
    """
    words = sys.argv[1:] if arguments is None else arguments
    settings = parse(Settings, __doc__ or "", words)
    from elastic_tf import plots
    from elastic_tf.app.commands import contest

    competition = contest.Contest(settings, launch or contest.launched)
    tables = competition.tables()
    allowed = competition.allowed_seconds
    result: dict[str, Any] = to_json(
        {
            "settings": settings,
            "command": shlex.join(["python", "-m", "elastic_tf", "compare", *words]),
            "created": now(),
            "version": __version__,
            "device": describe_device(),
            "allowed_seconds": allowed,
            "tables": tables,
        }
    )
    for name, rows in tables.items():
        print(f"\n{settings.data}, {name.replace('_', ' ')}, {settings.seeds} seeds")
        print(format_table(rows, COLUMNS))
        if name == "equal_seconds":
            print(f"Equal are {allowed:.0f} s, as many epochs as fit into them, at least one.")
        edges = [row["method"] for row in rows if row["rate_at_edge"]]
        if edges:
            print(f"The best rate is the first or the last that was tried: {', '.join(edges)}.")
    plots.save(plots.accuracy_at_budgets({"": tables}), settings.out / "comparison.png")
    write_json(settings.out / "comparison.json", result)
    print(f"\nWritten to {settings.out / 'comparison.json'}, with a picture beside it")
    return result

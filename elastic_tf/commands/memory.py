"""Say what memory a training step needs, and whether it fits, before it runs.

Example::

    python -m elastic_tf memory --model mobilenet_v2 --input-size 128 --batch-size 16 \\
        --limit "256 MiB" --out memory.png

The step is traced op by op, as TensorFlow runs it, and does not run. The library is not counted.
--last trains the last tensors alone. --out draws what is in use when, or writes it as JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elastic_tf import arguments as checks
from elastic_tf.commands import options
from elastic_tf.commands.commandline import option, parse
from elastic_tf.files.table import Column, format_table

if TYPE_CHECKING:
    from elastic_tf.memory import StepMemory

_SHOWN = 12  # tensors in a table
_LONGEST = 60  # letters of a name
_MIB = 2**20
_COLUMNS = (
    "tensor",
    "kind",
    Column("bytes", "MiB", ".2f"),
    Column("first", "from op"),
    Column("last", "to op"),
)


@dataclasses.dataclass(frozen=True)
class Settings(options.Network):
    """What to say, and where to draw it."""

    classes: int = option(1000, help="classes of the head")
    last: int | None = option(None, help="train so many tensors, the last; all if left out")
    clip: bool = option(False, help="gradients are clipped together, and all are kept until then")
    limit: str | None = option(None, help="memory that there is: '256 MiB', '2 GiB' or bytes")
    out: Path | None = option(None, help="the picture (.png, .pdf, .svg) or the numbers (.json)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Trace, print, and draw."""
    settings = parse(Settings, __doc__ or "", arguments)
    limit = None if settings.limit is None else checks.memory("limit", settings.limit)
    from elastic_tf import memory, zoo
    from elastic_tf.commands.training import harness

    names = ("classes", "input_size", "alpha", "bn_training")
    network = zoo.build(settings.model, **{name: getattr(settings, name) for name in names})
    model = harness.compiled(network, settings.optimizer, 1e-4)
    if settings.clip:
        model.optimizer.global_clipnorm = 1.0
    mask = last_tensors(len(model.tensors), settings.last)
    step = memory.step(model, settings.batch_size, mask)
    print(report(step))
    if limit is not None:
        print(verdict(step, limit, memory.largest_batch(model, limit, mask)))
    if settings.out is not None:
        if settings.out.suffix == ".json":
            step.save(settings.out)
        else:
            from elastic_tf import plots

            plots.save(step.plot(), settings.out)
        print(f"Written to {settings.out}")


def last_tensors(count: int, last: int | None) -> np.ndarray:
    """True for the last of `count` tensors; all if `last` is None."""
    trained = count if last is None else checks.count("last", last, most=count)
    return np.arange(count) >= count - trained


def report(step: StepMemory) -> str:
    """The largest of what is in use when most is, and the totals."""
    at = step.fullest
    used = [one for one in step.tensors if one.first <= at <= one.last]
    largest = sorted(used, key=lambda one: -one.bytes)[:_SHOWN]
    rows = [
        {**one._asdict(), "tensor": one.name[-_LONGEST:], "bytes": one.bytes / _MIB}
        for one in largest
    ]
    lasting = sum(one.bytes for one in step.tensors if one.kind in ("weight", "slots")) / _MIB
    return "\n".join(
        [
            f"Most is in use at op {at} of {len(step.ops)}, {step.ops[at]}:",
            format_table(rows, _COLUMNS),
            f"\nBatch {step.batch_size}: TensorFlow takes {step.peak / _MIB:.1f} MiB, "
            f"of it weights and slots {lasting:.1f}",
        ]
    )


def verdict(step: StepMemory, limit: int, most: int) -> str:
    """Whether the step fits, and up to which batch size it would."""
    fits = "fits" if step.peak <= limit else "does not fit"
    largest = f"the largest batch that does is {most}" if most else "no batch does"
    return f"{limit / _MIB:.1f} MiB: it {fits}; {largest}"

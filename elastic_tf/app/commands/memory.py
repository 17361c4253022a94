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

import numpy as np

from elastic_tf import arguments as checks
from elastic_tf.app.commands import options
from elastic_tf.app.commands.commandline import option, parse
from elastic_tf.files import format_table

_SHOWN = 12  # tensors in a table
_LONGEST = 60  # letters of a name
_MIB = 2**20
_COLUMNS = ("tensor", "kind", "bytes:.2f:MiB", "first::from op", "last::to op")


@dataclasses.dataclass(frozen=True)
class Settings(options.Step):
    """What to say, and where to draw it."""

    classes: int = option(1000, help="classes of the head")
    last: int | None = option(None, help="train so many tensors, the last; all if left out")
    limit: str | None = option(
        None, help="memory that there is: '256 MiB', '2 GiB' or bytes", check=checks.memory
    )
    out: Path | None = option(None, help="the picture (.png, .pdf, .svg) or the numbers (.json)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Trace, print, and draw."""
    settings = parse(Settings, __doc__ or "", arguments)
    from elastic_tf import memory
    from elastic_tf.app.commands.training import harness

    model = harness.compiled(harness.network(settings, settings.classes), settings.optimizer, 1e-4)
    count = len(model.tensors)
    trained = count if settings.last is None else checks.count("last", settings.last, most=count)
    mask = np.arange(count) >= count - trained
    step = memory.step(model, settings.batch_size, mask)
    at = step.fullest
    used = [one for one in step.tensors if one.first <= at <= one.last]
    rows = [
        {**one._asdict(), "tensor": one.name[-_LONGEST:], "bytes": one.bytes / _MIB}
        for one in sorted(used, key=lambda one: -one.bytes)[:_SHOWN]
    ]
    lasting = sum(one.bytes for one in step.tensors if one.kind in ("weight", "slots")) / _MIB
    print(f"Most is in use at op {at} of {len(step.ops)}, {step.ops[at]}:")
    print(format_table(rows, _COLUMNS))
    print(
        f"\nBatch {step.batch_size}: TensorFlow takes {step.peak / _MIB:.1f} MiB, "
        f"of it weights and slots {lasting:.1f}"
    )
    if settings.limit is not None:
        limit = checks.memory("limit", settings.limit)
        most = memory.largest_batch(model, limit, mask)
        fits = "fits" if step.peak <= limit else "does not fit"
        largest = f"the largest batch that does is {most}" if most else "no batch does"
        print(f"{limit / _MIB:.1f} MiB: it {fits}; {largest}")
    if settings.out is not None:
        if settings.out.suffix == ".json":
            step.save(settings.out)
        else:
            from elastic_tf import plots

            plots.save(plots.memory_map(step), settings.out)
        print(f"Written to {settings.out}")
